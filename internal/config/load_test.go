package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// load runs Load as the program does: args on the command line, env as NAME=VALUE, and a
// file with the given text if it is not empty.
func load(t *testing.T, args, env []string, yaml string) (Serve, []string, error) {
	t.Helper()
	if yaml != "" {
		path := filepath.Join(t.TempDir(), "holdfast.yaml")
		if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	for _, group := range Groups() {
		flags.AddFlagSet(Flags()[group])
	}
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return Load(flags, env)
}

func TestDefaultsAreLMCaches(t *testing.T) {
	c, warnings, err := load(t, nil, nil, "")
	if err != nil || len(warnings) != 0 {
		t.Fatalf("warnings %q, error %v", warnings, err)
	}
	want := Serve{
		Host: "localhost", Port: 5555, ChunkSize: 256,
		AlignBytes: 4096, SHM: true, Verify: VerifySampled, VerifyRate: 0.01,
		DiskSync: "data", DiskQueueDepth: 16, PrefetchPolicy: PrefetchRetain, PrefetchTimeout: 5 * time.Second, PrefetchInFlight: 8,
		WriteLimit: 600 * time.Second, ReadLimit: 300 * time.Second,
		ReapTimeout: 120 * time.Second, RegistrationGrace: 3600 * time.Second, Drain: 10 * time.Second,
		HTTPHost: "127.0.0.1", HTTPPort: 8080, LogLevel: "info", LogFormat: LogText,
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}

func TestPrecedence(t *testing.T) {
	const file = "port: 1004\n"
	layers := []struct {
		name      string
		args, env []string
		file      string
		want      int
	}{
		{"flag over all", []string{"--port", "1001"}, []string{"HOLDFAST_PORT=1002", "LMCACHE_PORT=1003"}, file, 1001},
		{"own variable over the rest", nil, []string{"LMCACHE_PORT=1003", "HOLDFAST_PORT=1002"}, file, 1002},
		{"lmcache variable over the file", nil, []string{"LMCACHE_PORT=1003"}, file, 1003},
		{"file over default", nil, nil, file, 1004},
		{"empty variable is unset", nil, []string{"HOLDFAST_PORT="}, file, 1004},
		{"empty flag is unset", []string{"--port", ""}, nil, file, 1004},
		{"empty file value is unset", nil, nil, "port:\n", 5555},
	}
	for _, l := range layers {
		t.Run(l.name, func(t *testing.T) {
			c, _, err := load(t, l.args, l.env, l.file)
			if err != nil || c.Port != l.want {
				t.Errorf("port %d, error %v; want %d", c.Port, err, l.want)
			}
		})
	}
}

// TestWrongFileIsRefused: also what is overridden must be right in the file; a variable need not be,
// as Kubernetes makes some.
func TestWrongFileIsRefused(t *testing.T) {
	for _, over := range []struct{ args, env []string }{{nil, []string{"HOLDFAST_PORT=1002"}}, {[]string{"--port", "1001"}, nil}} {
		_, _, err := load(t, over.args, over.env, "port: x\n")
		if !errors.Is(err, ErrInvalid) || strings.Count(err.Error(), "--port=x (from ") != 1 || !strings.Contains(err.Error(), "holdfast.yaml") {
			t.Errorf("%v: error %v", over, err)
		}
	}
	if _, _, err := load(t, nil, nil, "port: x\n"); err == nil || strings.Count(err.Error(), "--port=x") != 1 {
		t.Errorf("error %v", err)
	}
	if c, _, err := load(t, []string{"--port", "1001"}, []string{"HOLDFAST_PORT=tcp://10.0.0.1:80"}, ""); err != nil || c.Port != 1001 {
		t.Errorf("port %d, error %v", c.Port, err)
	}
}

func TestFileNamedByVariable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(path, []byte("chunk-size: 64\nl1-size-gb: 1.5\nverify-rate: 0.25\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := load(t, nil, []string{"HOLDFAST_CONFIG=" + path}, "")
	if err != nil || c.ChunkSize != 64 || c.L1Bytes != 3<<29 || c.VerifyRate != 0.25 {
		t.Errorf("%+v, error %v", c, err)
	}
}

// TestRefusals: every refusal names the setting, the value, the source and what to do.
func TestRefusals(t *testing.T) {
	cases := []struct {
		name      string
		args, env []string
		file      string
		want      []string
	}{
		{"port too large", []string{"--port=70000"}, nil, "", []string{"--port=70000", "0 to 65535", "default 5555"}},
		{"kubernetes service link", nil, []string{"HOLDFAST_PORT=tcp://10.0.0.7:5555"}, "",
			[]string{"--port=tcp://10.0.0.7:5555 (from HOLDFAST_PORT)", "enableServiceLinks: false"}},
		{"align", nil, []string{"LMCACHE_L1_ALIGN_BYTES=1000"}, "",
			[]string{"--l1-align-bytes=1000 (from LMCACHE_L1_ALIGN_BYTES)", "power of two from 64 to 2097152", "default 4096"}},
		{"size zero", []string{"--l1-size-gb", "0"}, nil, "", []string{"--l1-size-gb=0", "1 MiB", "leave it out"}},
		{"size not a number", nil, nil, "l1-size-gb: NaN\n", []string{"--l1-size-gb=NaN", "holdfast.yaml"}},
		{"size with a unit", []string{"--l1-size-gb=60GB"}, nil, "", []string{"--l1-size-gb=60GB", "number of GiB without a unit"}},
		{"chunk", []string{"--chunk-size=0"}, nil, "", []string{"--chunk-size=0", "1 to 65536"}},
		{"reap too short", []string{"--worker-reap-timeout-seconds", "29"}, nil, "",
			[]string{"--worker-reap-timeout-seconds=29", "0 (off), or 30 to 86400"}},
		{"negative timeout", []string{"--drain-seconds=-1"}, nil, "", []string{"--drain-seconds=-1", "0 to 3600"}},
		{"shm name with a slash", []string{"--shm-name=../x"}, nil, "", []string{"--shm-name=../x", "letters, digits"}},
		{"verify mode", []string{"--verify=maybe"}, nil, "", []string{"off, sampled, always"}},
		{"eviction policy", []string{"--eviction-policy", "ARC"}, nil, "", []string{"not served yet", "use LRU"}},
		{"hash", []string{"--hash-algorithm", "builtin"}, nil, "", []string{"CPython", "use blake3"}},
		{"server-driven mode", []string{"--supported-transfer-mode", "lmcache_driven"}, nil, "",
			[]string{"device IPC", "mp_transfer_mode=engine_driven"}},
		{"device pool", []string{"--l1-devdax-path", "/dev/dax0.0"}, nil, "", []string{"--l1-devdax-path", "DAX device is not served"}},
		{"noop", []string{"--eviction-policy", "noop"}, nil, "", []string{"the pool is a cache here; use LRU"}},
		{"long socket path", []string{"--socket", "/" + strings.Repeat("x", 107)}, nil, "", []string{"107 bytes"}},
		{"unknown key", nil, nil, "chunk_size: 64\n", []string{`"chunk_size"`, `nearest is "chunk-size"`}},
		{"nested key", nil, nil, "server:\n  port: 1\n", []string{`"server.port"`, "one level deep"}},
		{"key unlike any", nil, nil, "gpu: 1\n", []string{`unknown setting "gpu"; holdfast serve --help lists all`}},
		{"seconds with a unit", []string{"--drain-seconds=10s"}, nil, "", []string{"--drain-seconds=10s: must be a number of seconds, 0 to 3600"}},
		{"one choice", []string{"--eviction-policy=FIFO"}, nil, "", []string{"--eviction-policy=FIFO: must be LRU;"}},
		{"list", nil, nil, "port: [1, 2]\n", []string{`"port" must be a single value`}},
		{"config in the file", nil, nil, "config: x.yaml\n", []string{`"config" cannot be set in the file`}},
		{"not yaml", nil, nil, "port: [\n", []string{"holdfast.yaml", "yaml"}},
		{"a list of settings", nil, nil, "- port: 1\n", []string{"holdfast.yaml", "one setting a line (port: 5555)"}},
		{"no such file", []string{"--config", "/does/not/exist.yaml"}, nil, "", []string{"--config=/does/not/exist.yaml", "no such file"}},
		{"all at once", []string{"--port=x", "--chunk-size=y"}, nil, "", []string{"--port=x", "--chunk-size=y"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := load(t, c.args, c.env, c.file)
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("error %v, want one that wraps ErrInvalid", err)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error does not say %q:\n%v", part, err)
				}
			}
		})
	}
}

func TestTuningKnobWarnsAndTakesItsDefault(t *testing.T) {
	c, warnings, err := load(t, []string{"--verify-rate=7"}, []string{"HOLDFAST_LOG_LEVEL=loud"}, "")
	if err != nil || c.VerifyRate != 0.01 || c.LogLevel != "info" {
		t.Fatalf("rate %v, level %q, error %v", c.VerifyRate, c.LogLevel, err)
	}
	all := strings.Join(warnings, "\n")
	for _, part := range []string{"--verify-rate=7: must be above 0, at most 1; using the default 0.01", "--log-level=loud (from HOLDFAST_LOG_LEVEL)"} {
		if !strings.Contains(all, part) {
			t.Errorf("warnings do not say %q: %q", part, warnings)
		}
	}
}

func TestShmName(t *testing.T) {
	cases := []struct {
		name      string
		args, env []string
		file      string
		shm       bool
		want      string
	}{
		{"absent is unique", nil, nil, "", true, ""},
		{"empty flag is off", []string{"--shm-name", ""}, nil, "", false, ""},
		{"empty file value is off", nil, nil, "shm-name: \"\"\n", false, ""},
		{"null in the file is absent", nil, nil, "shm-name:\n", true, ""},
		{"empty variable is absent", nil, []string{"HOLDFAST_SHM_NAME="}, "", true, ""},
		{"prefixed", []string{"--shm-name", "mine"}, nil, "", true, "lmcache_l1_pool_mine"},
		{"prefixed once", []string{"--shm-name", "lmcache_l1_pool_mine"}, nil, "", true, "lmcache_l1_pool_mine"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, _, err := load(t, c.args, c.env, c.file)
			if err != nil || got.SHM != c.shm || got.ShmName != c.want {
				t.Errorf("SHM %v, name %q, error %v; want %v, %q", got.SHM, got.ShmName, err, c.shm, c.want)
			}
		})
	}
}

// TestExistingCommandLine is one that `lmcache server` takes; it must work unchanged.
func TestExistingCommandLine(t *testing.T) {
	args := strings.Fields(`--host 0.0.0.0 --port 6555 --l1-size-gb 60 --eviction-policy LRU --max-workers 4
		--max-gpu-workers 2 --max-cpu-workers=8 --no-l1-use-lazy --eviction-trigger-watermark 0.8 --eviction-ratio 0.2
		--l1-init-size-gb 20 --disable-observability --prometheus-port 9090 --no-separate-object-groups
		--worker-reap-timeout-seconds 0 --l1-write-ttl-seconds 600 --hash-algorithm blake3 --chunk-size 512`)
	c, warnings, err := load(t, args, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	if c.Host != "0.0.0.0" || c.Port != 6555 || c.L1Bytes != 60<<30 || c.ChunkSize != 512 || c.ReapTimeout != 0 {
		t.Errorf("values are not taken: %+v", c)
	}
	var named []string
	for _, w := range warnings {
		named = append(named, strings.Fields(w)[0])
	}
	want := []string{"--max-workers", "--max-gpu-workers", "--max-cpu-workers", "--separate-object-groups", "--l1-init-size-gb",
		"--eviction-trigger-watermark", "--eviction-ratio", "--disable-observability", "--prometheus-port"}
	if diff := cmp.Diff(want, named); diff != "" {
		t.Errorf("warned-of settings (-want +got):\n%s", diff)
	}
}

func TestMistypedVariableIsNamed(t *testing.T) {
	_, warnings, err := load(t, nil, []string{"HOLDFAST_PROT=1", "HOLDFAST_SERVICE_HOST=10.0.0.1"}, "")
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "did you mean HOLDFAST_PORT?") {
		t.Errorf("warnings %q, error %v", warnings, err)
	}
}

func TestUnknownFlagNamesTheNearest(t *testing.T) {
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	for _, group := range Groups() {
		flags.AddFlagSet(Flags()[group])
	}
	err := ExplainFlag(flags, flags.Parse([]string{"--chunksize", "1"}))
	if err == nil || !strings.Contains(err.Error(), "--chunk-size") {
		t.Errorf("error %v does not name --chunk-size", err)
	}
	for _, arg := range []string{"-p", "--zzzz"} {
		err := ExplainFlag(flags, flags.Parse([]string{arg}))
		if err == nil || strings.Contains(err.Error(), "nearest") {
			t.Errorf("%s: %v, but nothing is near", arg, err)
		}
	}
}
