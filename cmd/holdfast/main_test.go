package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/holdfast-kv/holdfast/internal/config"
	"github.com/holdfast-kv/holdfast/internal/replay"
)

// asProgram makes the test binary be the program itself: tests that need a process of
// their own start it with this variable set.
const asProgram = "HOLDFAST_TEST_RUNS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// holdfast runs the program in this process.
func holdfast(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(args, &out, &err)
	return code, out.String(), err.String()
}

func TestVersion(t *testing.T) {
	code, out, _ := holdfast("version")
	for _, part := range []string{"holdfast", "revision", "go1.", "LMCache multi-process", "ZMTP 3.1"} {
		if !strings.Contains(out, part) {
			t.Errorf("version does not say %q:\n%s", part, out)
		}
	}
	if code != 0 {
		t.Errorf("exit %d", code)
	}
}

func TestUsageErrors(t *testing.T) {
	t.Setenv("HOLDFAST_CHUNK_SIZE", "0")
	cases := []struct {
		args string
		want string
	}{
		{"sreve", "unknown command"},
		{"sreve", "try: holdfast --help"},
		{"serv", "serve"},
		{"help sreve", `unknown command "sreve"`},
		{"version extra", `version takes no arguments, and got "extra"`},
		{"serve --l1-keep false", "--NAME=false"},
		{"config extra", `config takes no arguments`},
		{"config docs extra", `config docs takes no arguments`},
		{"demo --diskpath x", "the nearest is --disk-path"},
		{"serve --l1-size-gb 60GB", "--l1-size-gb=60GB: must be a number of GiB without a unit"},
		{"qualify --timeout 0s", "--timeout=0s"},
		{"qualify --json /does/not/exist", "--json=/does/not/exist: "},
		{"serve --chunksize 1", "the nearest is --chunk-size"},
		{"serve", "--chunk-size=0 (from HOLDFAST_CHUNK_SIZE)"},
		{"serve extra", `serve takes no arguments, and got "extra"`},
		{"replay", "give one TRACE"},
		{"replay --generated trace.jsonl", "give one TRACE"},
		{"replay /does/not/exist", "no such file"},
		{"replay --generated --speed 0", "--speed=0"},
		{"replay --generated --dtype float12", "--dtype=float12"},
		{"replay --generated --transport pigeon", "pigeon"},
		{"replay --generated --requests 1 --ranks 0", "--ranks=0"},
		{"replay --generated --requests 1 --chunk-size 0", "--chunk-size=0"},
		{"replay --generated --requests -1", "--requests=-1"},
		{"replay --generated --l1-size-gb -1", "--l1-size-gb=-1"},
		{"replay --generated --verify-rate 7", "--verify-rate=7"},
		{"replay --generated --timeout 0s", "--timeout=0s"},
		{"replay --generated --server http://localhost:1", "neither tcp://HOST:PORT nor ipc://PATH"},
		{"replay --generated --server tcp://localhost:1 --verify off", "--verify is a setting of the server in this process"},
		{"replay --generated --status-url http://localhost:1", "--status-url goes with --server"},
		{"replay --genrated", "unknown flag"},
		{"replay --generated --tiers /tmp/x --server tcp://localhost:1", "--tiers is a setting of the server in this process"},
		{`replay --generated --tiers {"type":"tape"}`, "tape"},
		{"replay --generated --disk-size-gb 1", "--disk-size-gb=1: there is no disk that it is the size of; add --tiers DIRECTORY"},
		{"replay --generated --server foo:bar", `--server=foo:bar: bad endpoint`},
		{"replay --generated --server foo:bar", "give tcp://HOST:PORT or ipc://PATH"},
		{"replay --generated --server http://localhost:1", "--server=http://localhost:1: "},
		{"replay --generated --server tcp://a:1 --server tcp://b:1", `"tcp://b:1" for "--server" flag: it is tcp://a:1 already; give one server`},
		{"qualify --store server --server tcp://a:1 --server tcp://b:1", `it is tcp://a:1 already; give one server`},
		{"replay --generated --disk-size-gb -1", "--disk-size-gb=-1"},
	}
	for _, c := range cases {
		code, _, stderr := holdfast(strings.Fields(c.args)...)
		if code != exitUsage || !strings.Contains(stderr, c.want) {
			t.Errorf("holdfast %s: exit %d, %q; want %d and %q", c.args, code, stderr, exitUsage, c.want)
		}
	}
}

// TestUnusableDirectory: whoever names a directory that cannot be a disk is told which setting it was.
func TestUnusableDirectory(t *testing.T) {
	full := t.TempDir()
	file := filepath.Join(full, "file")
	check(t, os.WriteFile(file, []byte("x"), 0o600))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"demo", "--disk-path", "/proc/x/y"}, "--disk-path=/proc/x/y: "},
		{[]string{"demo", "--disk-path", full}, "--disk-path: "},
		{[]string{"replay", "--generated", "--requests", "1", "--l1-size-gb", "0.01", "--tiers", file + "/x"}, "--tiers=" + file + "/x: "},
		{[]string{"serve", "--port", "0", "--http-port", "0", "--l1-size-gb", "0.01", "--disk-path", file}, "--disk-path=" + file + ": "},
		{[]string{"inspect", file}, "PATH is the --disk-path of a server"},
	} {
		if code, _, stderr := holdfast(c.args...); code != exitFailure || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: exit %d, %q", c.args, code, stderr)
		}
	}
}

// TestNothingNotLogged: how many lines were left out is told if there were any.
func TestNothingNotLogged(t *testing.T) {
	for _, format := range []string{config.LogText, config.LogJSON} {
		var out bytes.Buffer
		log := newLogger(&out, config.Serve{LogLevel: "info", LogFormat: format})
		log.Info("a", "not_logged", 0, "tries", 0)
		if s := out.String(); strings.Contains(s, "not_logged") || !strings.Contains(s, "tries") {
			t.Error(s)
		}
		if log.Info("b", "not_logged", 3); !strings.Contains(out.String(), "not_logged") {
			t.Error(out.String())
		}
	}
}

// TestReplay: a small replay ends well, and its report can be read by a machine.
func TestReplay(t *testing.T) {
	for _, transport := range []string{"shm", "pickle"} {
		code, out, stderr := holdfast("replay", "--generated", "--requests", "12", "--l1-size-gb", "0.02", "--transport", transport,
			"--layers", "1", "--heads", "1", "--head-dim", "8", "--ranks", "2", "--json")
		var r replay.Report
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("%v\n%s\n%s", err, out, stderr)
		}
		if code != 0 || r.Requests != 12 || !r.OK() || r.ComparedBytes == 0 || string(r.Transport) != transport {
			t.Errorf("exit %d, %s\n%s", code, out, stderr)
		}
	}
}

// TestReplayOfNoServer fails with 1, not with a usage error.
func TestReplayOfNoServer(t *testing.T) {
	code, _, stderr := holdfast("replay", "--generated", "--requests", "1", "--server", "ipc:///does/not/exist")
	if code != exitFailure || !strings.Contains(stderr, "/does/not/exist") || strings.Contains(stderr, "requests") {
		t.Errorf("exit %d, %q", code, stderr)
	}
}

// TestVerdict: wrong bytes outrank an interrupt.
func TestVerdict(t *testing.T) {
	cases := []struct {
		name   string
		report replay.Report
		want   int
	}{
		{"clean", replay.Report{Balanced: true}, 0},
		{"mismatch", replay.Report{Balanced: true, Mismatches: 1}, exitFailure},
		{"imbalance", replay.Report{Faults: []string{"x"}}, exitFailure},
		{"interrupt", replay.Report{Balanced: true, Interrupted: true}, exitInterrupted},
		{"mismatch and interrupt", replay.Report{Balanced: true, Interrupted: true, Mismatches: 1}, exitFailure},
	}
	for _, c := range cases {
		got := 0
		if err := verdict(&c.report, nil); err != nil {
			got = err.(exitError).code
		}
		if got != c.want {
			t.Errorf("%s: exit %d, want %d", c.name, got, c.want)
		}
	}
}

func TestServeHelp(t *testing.T) {
	code, out, _ := holdfast("serve", "--help")
	if code != 0 {
		t.Errorf("exit %d", code)
	}
	for _, part := range []string{"\nProtocol:", "\nMemory:", "\nTiers:", `{"type":"s3"`, "\nLimits and liveness:", "\nAdmin HTTP and logs:", "Examples:", "--l1-size-gb"} {
		if !strings.Contains(out, part) {
			t.Errorf("help does not have %q", part)
		}
	}
	for _, hidden := range []string{"--max-workers", "--l1-devdax-path", "--no-l1-use-lazy"} {
		if strings.Contains(out, "\n      "+hidden) {
			t.Errorf("help shows %s, which only keeps old command lines working", hidden)
		}
	}
}

// TestReadmeNamesRealFlags: a flag in the README that starts with -- is one of ours, or
// belongs to a program that the README tells of.
func TestReadmeNamesRealFlags(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{"kv-transfer-config": true, "ipc": true, "shm-size": true, "help": true}
	for _, set := range config.Flags() {
		set.VisitAll(func(f *pflag.Flag) { known[f.Name] = true })
	}
	for _, c := range command().Commands() {
		c.Flags().VisitAll(func(f *pflag.Flag) { known[f.Name] = true })
	}
	for _, m := range regexp.MustCompile(`--([a-z][a-z0-9-]+)`).FindAllStringSubmatch(string(text), -1) {
		if !known[m[1]] {
			t.Errorf("--%s is no flag", m[1])
		}
	}
}

func TestEveryAddress(t *testing.T) {
	for text, want := range map[string]string{
		"tcp://[::]:5555 ipc:///s": "tcp://*:5555 ipc:///s", "tcp://0.0.0.0:5555": "tcp://*:5555", "tcp://[::1]:5555": "tcp://[::1]:5555",
	} {
		if got := everyAddress(text, "*"); got != want {
			t.Errorf("%s is shown as %s, want %s", text, got, want)
		}
	}
}

func TestPoolText(t *testing.T) {
	for _, c := range []struct {
		asked, size int64
		want        string
	}{
		{60 << 30, 60 << 30, "60.00 GiB"}, {1 << 20, 1 << 20, "1 MiB"},
		{0, 64 << 20, "64 MiB (chosen for this node; --l1-size-gb sets it)"},
	} {
		if got := poolText(config.Serve{L1Bytes: c.asked}, c.size); got != c.want {
			t.Errorf("%d of %d bytes: %q, want %q", c.size, c.asked, got, c.want)
		}
	}
}

func TestReadyLineConfiguresVLLM(t *testing.T) {
	for _, c := range []struct{ host, want string }{
		{"127.0.0.1", "tcp://127.0.0.1"}, {"0.0.0.0", "tcp://localhost"}, {"::", "tcp://localhost"}, {"::1", "tcp://[::1]"},
	} {
		var got struct {
			Connector string `json:"kv_connector"`
			Extra     struct {
				Host string `json:"lmcache.mp.host"`
				Port int    `json:"lmcache.mp.port"`
				Mode string `json:"lmcache.mp.mp_transfer_mode"`
			} `json:"kv_connector_extra_config"`
		}
		if err := json.Unmarshal([]byte(vllmConfig(c.host, "5555")), &got); err != nil {
			t.Fatal(err)
		}
		if got.Connector != "LMCacheMPConnector" || got.Extra.Host != c.want || got.Extra.Port != 5555 || got.Extra.Mode != "engine_driven" {
			t.Errorf("%s: %+v", c.host, got)
		}
	}
}
