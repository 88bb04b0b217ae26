package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/client"
)

// binary builds the program once.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "holdfast")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", path, "../../cmd/holdfast")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	// Said explicitly, it does not follow the processors that threads are given.
	runtime.GOMAXPROCS(runtime.NumCPU())
	code := m.Run()
	if path, err := program(); err == nil && code == 0 {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// process is a running server.
type process struct {
	b        *testing.B
	cmd      *exec.Cmd
	endpoint string
	http     string
	output   bytes.Buffer
	ready    time.Duration // from exec to the first answer
}

// serve runs the program until the end of the benchmark.
func serve(b *testing.B, args ...string) *process {
	path, err := program()
	if err != nil {
		b.Fatal(err)
	}
	socket := filepath.Join(b.TempDir(), "s")
	port := freePort(b)
	p := &process{b: b, endpoint: "ipc://" + socket, http: "http://127.0.0.1:" + port}
	args = append([]string{"serve", "--port", "0", "--http-port", port, "--socket", socket, "--log-level", "warn"}, args...)
	p.cmd = exec.Command(path, args...)
	p.cmd.Env = append(os.Environ(), fmt.Sprint("GOMAXPROCS=", runtime.NumCPU()))
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	start := time.Now()
	if err := p.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(p.stop)
	c, err := p.answers()
	if err != nil {
		b.Fatal(err)
	}
	p.ready = time.Since(start)
	c.Close()
	return p
}

// answers returns a connection once the server has answered on it.
func (p *process) answers() (*client.Client, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		c, err := client.Dial(ctx, p.endpoint, client.Options{})
		if err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("the server does not answer: %w\n%s", err, &p.output)
		}
		time.Sleep(time.Millisecond)
	}
}

// freePort is one that nobody listens on.
func freePort(b *testing.B) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	return port
}

// number is one of /status's cache.
func (p *process) number(name string) float64 {
	reply, err := http.Get(p.http + "/status")
	if err != nil {
		p.b.Fatal(err)
	}
	defer reply.Body.Close()
	var status struct{ Cache map[string]any }
	err = json.NewDecoder(reply.Body).Decode(&status)
	n, ok := status.Cache[name].(float64)
	if err != nil || !ok {
		p.b.Fatalf("no %s in /status: %v", name, err)
	}
	return n
}

// stop ends the server; once is enough.
func (p *process) stop() {
	if p.cmd.ProcessState != nil {
		return
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.cmd.Wait(); err != nil {
		p.b.Errorf("the server ended with %v\n%s", err, &p.output)
	}
}

// cpu is the processor time of the server so far, in steps of 10 ms.
func (p *process) cpu() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		p.b.Fatal(err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')'):]))
	var ticks int64
	for _, field := range fields[12:14] { // utime and stime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			p.b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// ownCPU is that of this process.
func ownCPU(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// kib reads lines of /proc/PID/status that are in KiB, and adds them.
func (p *process) kib(names ...string) (sum int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.b.Fatal(err)
	}
	line := regexp.MustCompile(`^(` + strings.Join(names, "|") + `):\s+(\d+) kB$`)
	for in := bufio.NewScanner(bytes.NewReader(text)); in.Scan(); {
		if m := line.FindStringSubmatch(in.Text()); m != nil {
			n, err := strconv.Atoi(m[2])
			if err != nil {
				p.b.Fatal(err)
			}
			sum += n
		}
	}
	if sum == 0 {
		p.b.Fatal(errors.New("no memory in /proc"))
	}
	return sum
}
