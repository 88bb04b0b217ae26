package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-kv/holdfast/internal/config"
	"github.com/holdfast-kv/holdfast/internal/daemon"
	"github.com/holdfast-kv/holdfast/internal/tier/adapter"
)

func serveCommand() *cobra.Command {
	groups := config.Flags()
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the cache server of this node",
		Long: `Run the cache server of this node until SIGTERM or an interrupt; a second signal ends the drain at once.

At SIGTERM the pool stays in shared memory, and the next server of the same --shm-name, or --instance-id, or address,
serves what is in it; at an interrupt it is removed. --l1-keep and --no-l1-keep decide otherwise. After SIGKILL the next
server adopts it, too. --l1-fresh starts empty. --take-over takes the place of the server that is running.

Flags of "lmcache server" keep their names and defaults where they mean something here; the others are accepted with a
warning. Every flag is also a variable (--l1-size-gb is HOLDFAST_L1_SIZE_GB) and a key of the YAML file of --config.`,
		Example: `  # a quarter of the memory that this node allows, for engines on this host
  holdfast serve

  # 60 GiB, for engines in other containers that share /dev/shm
  holdfast serve --host 0.0.0.0 --l1-size-gb 60

  # 500 GB of disk behind memory, and a bucket for the whole fleet behind both
  holdfast serve --disk-path /var/cache/holdfast --disk-size-gb 500 \
    --l2-adapter '{"type":"s3","endpoint":"https://s3.eu-central-1.amazonaws.com","bucket":"kv-cache"}'

  # no shared memory: every byte goes through the socket
  holdfast serve --shm-name ""

  # settings from a file, one of them overridden
  HOLDFAST_CHUNK_SIZE=512 holdfast serve --config /etc/holdfast.yaml`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd) },
	}
	for _, name := range config.Groups() {
		cmd.Flags().AddFlagSet(groups[name])
	}
	cmd.SetUsageFunc(func(cmd *cobra.Command) error { return serveUsage(cmd.OutOrStdout(), cmd, groups) })
	return cmd
}

// serveUsage shows the flags by group.
func serveUsage(w io.Writer, cmd *cobra.Command, groups map[string]*pflag.FlagSet) error {
	fmt.Fprintf(w, "Usage:\n  holdfast serve [flags]\n\nExamples:\n%s\n", cmd.Example)
	for _, name := range config.Groups() {
		if flags := groups[name].FlagUsagesWrapped(helpWidth); flags != "" {
			fmt.Fprintf(w, "\n%s:\n%s", name, flags)
		}
		if name == config.GroupTiers {
			fmt.Fprintf(w, "\n      Examples of --l2-adapter:\n        %s\n", strings.Join(adapter.Examples(), "\n        "))
		}
	}
	_, err := fmt.Fprint(w, "\nMore: docs/configuration.md, docs/operations.md\n")
	return err
}

// helpWidth is that of the narrowest terminal that help should look well on.
const helpWidth = 110

func serve(cmd *cobra.Command) error {
	cfg, warnings, err := config.Load(cmd.Flags(), os.Environ())
	if err != nil {
		return usage(err)
	}
	log := newLogger(cmd.ErrOrStderr(), cfg)
	for _, w := range warnings {
		log.Warn(w)
	}
	// Who reads our output may go, and a terminal may close; neither may end the server
	// so that its pool stays behind.
	signal.Ignore(syscall.SIGPIPE)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, endings()...)
	defer signal.Stop(signals)

	starting, started := signal.NotifyContext(cmd.Context(), endings()...)
	d, err := daemon.Start(starting, cfg, readBuild().version, log)
	started()
	if err != nil {
		return failure(err)
	}
	printReady(cmd.OutOrStdout(), cfg, d)

	var broken error
	keep := cfg.L1Keep == config.KeepAlways
	select {
	case s := <-signals:
		// Who ends a server at a terminal wants it gone.
		keep = keep || s == syscall.SIGTERM && cfg.L1Keep == config.KeepUnlessInterrupted
		log.Info("draining; a second signal ends it at once", "signal", s.String(), "seconds", cfg.Drain.Seconds(), "pool_stays", keep && d.HasIdentity())
	case <-d.TakenOver():
		keep = true
		log.Info("draining for the server that takes over", "seconds", cfg.Drain.Seconds())
	case broken = <-d.Failed():
		keep = false
		log.Error("the server cannot go on; draining", "error", broken)
	}
	ctx, cancel := context.WithTimeout(context.Background(), cfg.Drain)
	defer cancel()
	go func() {
		<-signals
		cancel()
	}()
	switch err := d.Stop(ctx, keep); {
	case errors.Is(err, context.DeadlineExceeded):
		return failure(fmt.Errorf("the drain did not end within --drain-seconds=%g: %w", cfg.Drain.Seconds(), err))
	case errors.Is(err, context.Canceled):
		return failure(fmt.Errorf("the drain was cut by a second signal: %w", err))
	case err != nil:
		return failure(err)
	}
	if broken != nil {
		return failure(broken)
	}
	log.Info("stopped")
	return nil
}

func newLogger(w io.Writer, cfg config.Serve) *slog.Logger {
	var level slog.Level
	// The word is one of slog's own; config has checked it.
	_ = level.UnmarshalText([]byte(cfg.LogLevel))
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: withoutNothing}
	if cfg.LogFormat == config.LogJSON {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// withoutNothing leaves out how many lines were not logged where there was none.
func withoutNothing(_ []string, a slog.Attr) slog.Attr {
	if a.Key == "not_logged" && a.Value.Kind() == slog.KindInt64 && a.Value.Int64() == 0 {
		return slog.Attr{}
	}
	return a
}

// printReady tells a person where the server is and how an engine is pointed at it.
func printReady(w io.Writer, cfg config.Serve, d *daemon.Daemon) {
	pool := d.PoolName()
	if pool == "" {
		pool = "private (no shared memory; bytes go through the socket)"
	}
	fmt.Fprintf(w, "holdfast %s is ready\n", readBuild().version)
	fmt.Fprintf(w, "  engines   %s\n", everyAddress(strings.Join(d.Endpoints(), " "), "*"))
	size := poolText(cfg, d.PoolSize())
	if n, adopted := d.Adopted(); adopted {
		size = fmt.Sprintf("%s, left by an earlier server with %d objects", poolSize(d.PoolSize()), n)
	}
	fmt.Fprintf(w, "  pool      %s, %s\n", pool, size)
	names := adapter.Names(cfg.Tiers())
	for i, t := range cfg.Tiers() {
		fmt.Fprintf(w, "  tier      %s\n", tierText(names[i], t))
	}
	fmt.Fprintf(w, "  admin     http://%s/status\n", everyAddress(d.AdminAddr(), "localhost"))
	host, port, err := net.SplitHostPort(strings.TrimPrefix(d.Endpoints()[0], "tcp://"))
	if err != nil {
		return
	}
	fmt.Fprintf(w, "  vLLM      --kv-transfer-config '%s'\n", vllmConfig(host, port))
}

// everyAddress puts a name in place of the address that stands for all of this host.
func everyAddress(text, name string) string {
	return strings.NewReplacer("[::]:", name+":", "0.0.0.0:", name+":").Replace(text)
}

// poolText is the pool's size, and why it is that if nobody chose it.
func poolText(cfg config.Serve, size int64) string {
	if cfg.L1Bytes == 0 {
		return poolSize(size) + " (chosen for this node; --l1-size-gb sets it)"
	}
	return poolSize(size)
}

// tierText is a tier's name, which /status and metrics use, what it is, and how large a disk may
// become; of servers nobody knows that.
func tierText(name string, t adapter.Spec) string {
	text := t.String()
	if name != string(t.Kind) { // with which the text begins
		text = name + ": " + text
	}
	switch {
	case t.Kind != adapter.Disk:
		return text
	case t.Disk.LimitBytes == 0:
		return text + ", as large as its file system allows"
	}
	return fmt.Sprintf("%s, at most %s", text, poolSize(t.Disk.LimitBytes))
}

func poolSize(size int64) string {
	if size < 1<<30 {
		return fmt.Sprintf("%.0f MiB", float64(size)/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", float64(size)/(1<<30))
}

// vllmConfig is the value of vLLM's --kv-transfer-config for an engine on this host.
func vllmConfig(host, port string) string {
	switch ip := net.ParseIP(host); {
	case ip == nil: // a name
	case ip.IsUnspecified():
		host = "localhost"
	case ip.To4() == nil:
		host = "[" + host + "]"
	}
	return fmt.Sprintf(`{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both","kv_connector_extra_config":`+
		`{"lmcache.mp.host":"tcp://%s","lmcache.mp.port":%s,"lmcache.mp.mp_transfer_mode":"engine_driven"}}`, host, port)
}
