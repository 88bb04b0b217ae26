package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/config"
	"github.com/holdfast-kv/holdfast/internal/replay"
	"github.com/holdfast-kv/holdfast/internal/tier/disk"
	"github.com/holdfast-kv/holdfast/internal/workload"
	"github.com/holdfast-kv/holdfast/kv"
)

// replayFlags are the command line of `holdfast replay` as it was written.
type replayFlags struct {
	server, statusURL    string
	generated            bool
	requests             int
	speed                string
	concurrency, ranks   int
	layers, heads        int
	headDim, chunkSize   int
	dtype, transport     string
	verify               string
	l1SizeGB, verifyRate float64
	timeout              time.Duration
	seed                 uint64
	tiers                []string
	diskSizeGB           float64
	json                 bool
}

func replayCommand() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay TRACE | --generated",
		Short: "Play a request trace through a server and compare every byte",
		Long: `Play a request trace through a real server, over its socket and shared memory, as an engine does: look up, retrieve
what is hit, store what is not, end the session. The KV bytes are a function of prefix, rank, layer and position, so
that every retrieved byte can be compared with what it must be.

TRACE has the Mooncake format: JSON lines with timestamp (ms), input_length, output_length and hash_ids of 512-token
prefix blocks; "-" reads standard input. Without --server a server is started in this process.

The exit status is 1 if a byte was wrong or the books do not balance, and 130 after an interrupt, with a report of what
was played.`,
		Example: `  # the first 1,000 requests, as fast as possible, against a server in this process
  holdfast replay --requests 1000 conversation_trace.jsonl

  # with a disk of 20 GiB behind a pool of 1 GiB; what is stored there stays, and is found the next time
  holdfast replay --l1-size-gb 1 --tiers /var/tmp/kv --disk-size-gb 20 conversation_trace.jsonl

  # with a Valkey behind the disk
  holdfast replay --tiers /var/tmp/kv --tiers '{"type":"valkey","addresses":["localhost:6379"]}' --generated

  # in real time against a server that runs, with 4 ranks
  holdfast replay --server tcp://localhost:5555 --status-url http://localhost:8080/status \
      --speed trace --ranks 4 conversation_trace.jsonl

  # no trace at hand
  holdfast replay --generated --requests 1000`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 || (len(args) == 1) == f.generated {
				return usage(errors.New("give one TRACE, or --generated"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.Var(oneServer{&f.server}, "server", "play against the server at `ADDRESS` (tcp://HOST:PORT or ipc://PATH) instead of one in this process")
	flags.StringVar(&f.statusURL, "status-url", "", "`URL` of that server's /status page, for its evictions and ledger")
	flags.BoolVar(&f.generated, "generated", false, "play a generated trace of the published shape of a chat service")
	flags.IntVar(&f.requests, "requests", 0, "play the first `N` requests; 0 is all (12,031 of a generated trace)")
	flags.StringVar(&f.speed, "speed", "max", "`SPEED`: max (as fast as possible), trace (real time), or a factor of real time")
	flags.IntVar(&f.concurrency, "concurrency", 4, "requests in flight")
	flags.IntVar(&f.ranks, "ranks", 1, "tensor-parallel ranks, each with a connection of its own")
	flags.IntVar(&f.layers, "layers", 4, "layers of the model")
	flags.IntVar(&f.heads, "heads", 2, "KV heads of one rank")
	flags.IntVar(&f.headDim, "head-dim", 64, "elements of a head")
	flags.StringVar(&f.dtype, "dtype", "bfloat16", "element type, by torch's name")
	flags.StringVar(&f.transport, "transport", "shm", "how bytes travel: shm or pickle")
	flags.Float64Var(&f.l1SizeGB, "l1-size-gb", 0, "pool of the server in this process, in GiB; 0 is a quarter of what the node allows")
	flags.StringArrayVar(&f.tiers, "tiers", nil, "second level of the server in this process: a `DIRECTORY`, or an adapter in JSON as serve takes it; may be repeated, in the order of asking")
	flags.Float64Var(&f.diskSizeGB, "disk-size-gb", 0, "most that a DIRECTORY of --tiers may take, in GiB; 0 is all but a reserve")
	flags.IntVar(&f.chunkSize, "chunk-size", 256, "tokens of a chunk, of the server in this process")
	flags.StringVar(&f.verify, "verify", config.VerifySampled, "which loads the server in this process checks: off, sampled or always")
	flags.Float64Var(&f.verifyRate, "verify-rate", 0.01, "share of loads checked with --verify sampled")
	flags.DurationVar(&f.timeout, "timeout", time.Minute, "limit of every single operation")
	flags.Uint64Var(&f.seed, "seed", 0, "changes all KV bytes, and the generated trace")
	flags.BoolVar(&f.json, "json", false, "print the report as JSON")
	return cmd
}

// ofEmbedded are the flags that say something about the server in this process.
var ofEmbedded = []string{"l1-size-gb", "tiers", "disk-size-gb", "chunk-size", "verify", "verify-rate"}

func (f *replayFlags) run(cmd *cobra.Command, args []string) error {
	o, err := f.options(cmd)
	if err != nil {
		return usage(err)
	}
	trace, name, err := f.trace(cmd, args)
	if err != nil {
		return usage(err)
	}
	o.Trace = name
	report, err := play(cmd, trace, o)
	if err := printReport(cmd, &report, f.json); err != nil {
		return failure(err)
	}
	return verdict(&report, aboutDisk("--tiers", f.tiers, err))
}

// aboutDisk names the setting of a directory that cannot be used as a disk.
func aboutDisk(flag string, directories []string, err error) error {
	if errors.Is(err, disk.ErrForeign) || errors.Is(err, disk.ErrInUse) {
		return fmt.Errorf("%s: %w", flag, err)
	}
	var at *os.PathError
	if !errors.As(err, &at) {
		return err
	}
	for _, d := range directories {
		// What cannot be made may be a directory above it.
		if d != "" && (strings.HasPrefix(d, at.Path) || strings.HasPrefix(at.Path, d)) {
			return fmt.Errorf("%s=%s: %w; give a directory that user %d can make and write", flag, d, err, os.Geteuid())
		}
	}
	return err
}

// verdict turns the outcome of a replay into an exit code. Wrong bytes outrank an
// interrupt.
func verdict(r *replay.Report, err error) error {
	switch {
	case errors.Is(err, replay.ErrOptions):
		return usage(err)
	case err != nil:
		return failure(err)
	case !r.OK():
		return failure(r.Err())
	case r.Interrupted:
		return exitError{exitInterrupted, errors.New("interrupted; the report covers what was played")}
	}
	return nil
}

// play runs the replay with its progress on standard error until it ends or is
// interrupted; a second interrupt ends the program.
func play(cmd *cobra.Command, trace []workload.Request, o replay.Options) (replay.Report, error) {
	// A reader of the output that has gone is an interrupt too: the pool has to be unlinked.
	ctx, stop := signal.NotifyContext(cmd.Context(), append(endings(), syscall.SIGPIPE)...)
	defer stop()
	context.AfterFunc(ctx, stop)
	progress := new(replay.Progress)
	drawing := progress.Draw(cmd.ErrOrStderr())
	defer drawing.Stop()
	// What a server warns of, such as a store that finds no memory, is counted in the report.
	o.Log = slog.New(slog.NewTextHandler(drawing, &slog.HandlerOptions{Level: slog.LevelError}))
	return replay.Run(ctx, trace, o, progress)
}

func printReport(cmd *cobra.Command, r *replay.Report, asJSON bool) error {
	if r.TraceRequests == 0 {
		return nil // it did not begin
	}
	out := cmd.OutOrStdout()
	if !asJSON {
		return r.WriteTable(out)
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

func (f *replayFlags) trace(cmd *cobra.Command, args []string) ([]workload.Request, string, error) {
	if f.requests < 0 {
		return nil, "", fmt.Errorf("--requests=%d: must not be negative", f.requests)
	}
	if f.generated {
		n := f.requests
		if n == 0 {
			n = workload.HourRequests
		}
		return workload.Generate(f.seed, n, workload.Options{}), fmt.Sprintf("generated, seed %d", f.seed), nil
	}
	if args[0] == "-" {
		trace, err := workload.Read(cmd.InOrStdin(), "standard input", f.requests)
		return trace, "standard input", err
	}
	trace, err := workload.ReadFile(args[0], f.requests)
	return trace, args[0], err
}

func (f *replayFlags) options(cmd *cobra.Command) (replay.Options, error) {
	for _, name := range ofEmbedded {
		if f.server != "" && cmd.Flags().Changed(name) {
			return replay.Options{}, fmt.Errorf("--%s is a setting of the server in this process, and --server names another", name)
		}
	}
	if f.server == "" && f.statusURL != "" {
		return replay.Options{}, errors.New("--status-url goes with --server")
	}
	// Zero is the default for replay, and a slip of the keyboard here.
	for name, n := range map[string]int{
		"ranks": f.ranks, "concurrency": f.concurrency, "chunk-size": f.chunkSize,
		"layers": f.layers, "heads": f.heads, "head-dim": f.headDim,
	} {
		if n < 1 {
			return replay.Options{}, fmt.Errorf("--%s=%d: must be at least 1", name, n)
		}
	}
	if f.timeout <= 0 {
		return replay.Options{}, fmt.Errorf("--timeout=%v: must be above 0", f.timeout)
	}
	if !(f.verifyRate > 0 && f.verifyRate <= 1) {
		return replay.Options{}, fmt.Errorf("--verify-rate=%v: must be above 0, at most 1", f.verifyRate)
	}
	transport := replay.Transport(f.transport)
	if transport != replay.SHM && transport != replay.Pickle {
		return replay.Options{}, fmt.Errorf("--transport=%s: must be %s or %s", f.transport, replay.SHM, replay.Pickle)
	}
	speed, err := parseSpeed(f.speed)
	if err != nil {
		return replay.Options{}, err
	}
	dtype, err := kv.ParseDType(f.dtype)
	if err != nil {
		return replay.Options{}, fmt.Errorf("--dtype=%s: %w; one of %v", f.dtype, err, kv.DTypes())
	}
	verify, err := parseVerify(f.verify)
	if err != nil {
		return replay.Options{}, err
	}
	if !(f.l1SizeGB >= 0) || f.l1SizeGB > 1<<20 {
		return replay.Options{}, fmt.Errorf("--l1-size-gb=%g: must be a size in GiB from 0 (choose) to 1048576", f.l1SizeGB)
	}
	if !(f.diskSizeGB >= 0) || f.diskSizeGB > 1<<20 {
		return replay.Options{}, fmt.Errorf("--disk-size-gb=%g: must be a size in GiB from 0 (no limit) to 1048576", f.diskSizeGB)
	}
	tiers, warnings, err := replay.ParseTiers(f.tiers, int64(f.diskSizeGB*(1<<30)))
	if err != nil {
		return replay.Options{}, err
	}
	for _, w := range warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
	}
	return replay.Options{
		Server: f.server, StatusURL: f.statusURL,
		Embedded: replay.Embedded{
			PoolBytes: int64(f.l1SizeGB*(1<<30)) / 4096 * 4096, ChunkSize: f.chunkSize,
			Verify: verify, VerifyRate: f.verifyRate, Tiers: tiers,
		},
		Transport: transport, Ranks: f.ranks, Concurrency: f.concurrency,
		Geometry: replay.Geometry{Layers: f.layers, Heads: f.heads, HeadDim: f.headDim, DType: dtype},
		Speed:    speed, Timeout: f.timeout, Seed: f.seed,
	}, nil
}

func parseSpeed(s string) (float64, error) {
	switch s {
	case "max":
		return 0, nil
	case "trace":
		return 1, nil
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v > 0 && v <= 1e6) {
		return 0, fmt.Errorf("--speed=%s: must be max, trace, or a factor above 0 and at most 1000000", s)
	}
	return v, nil
}

func parseVerify(s string) (cache.VerifyMode, error) {
	switch s {
	case config.VerifyOff:
		return cache.VerifyOff, nil
	case config.VerifySampled:
		return cache.VerifySampled, nil
	case config.VerifyAlways:
		return cache.VerifyAlways, nil
	}
	return 0, fmt.Errorf("--verify=%s: must be off, sampled or always", s)
}
