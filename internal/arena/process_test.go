package arena

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"
)

// The test binary plays a pool's owner, and a child of that owner, when these are set.
const (
	ownerEnv = "HOLDFAST_TEST_POOL_DIR"
	nameEnv  = "HOLDFAST_TEST_POOL_NAME"
	idleEnv  = "HOLDFAST_TEST_IDLE"
)

// part plays another part that the environment may ask for, and reports whether it did.
var part = func() bool { return false }

func TestMain(m *testing.M) {
	switch {
	case part():
	case os.Getenv(idleEnv) != "":
		io.Copy(io.Discard, os.Stdin)
	case os.Getenv(ownerEnv) != "":
		if err := own(os.Getenv(ownerEnv), os.Getenv(nameEnv)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

// own creates a pool, starts a child that outlives this process, says so, and goes on
// until its input ends.
func own(dir, name string) error {
	p, err := Create(PoolOptions{Dir: dir, Name: name, Size: 1 << 20})
	if err != nil {
		return err
	}
	p.Mem()[0] = 1
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), idleEnv+"=1")
	child.Stdin = os.Stdin
	if err := child.Start(); err != nil {
		return err
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	return p.Close()
}

// owner starts a process that owns a pool.
func owner(t *testing.T, dir, name string) (cmd *exec.Cmd, end func()) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ownerEnv+"="+dir, nameEnv+"="+name)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the owner says %q, %v", line, err)
	}
	return cmd, func() { in.Close() }
}

// TestRemoveStaleOfKilledOwner kills a process that owns a pool, while a child of it
// lives on, and leaves another owner alive.
func TestRemoveStaleOfKilledOwner(t *testing.T) {
	dir := shmDir(t)
	killed, endKilled := owner(t, dir, "pool-killed")
	defer endKilled()
	live, endLive := owner(t, dir, "pool-live")
	if removed, err := RemoveStale(dir, "pool-"); err != nil || len(removed) > 0 {
		t.Errorf("both owners live, removed %v, %v", removed, err)
	}
	must(t, killed.Process.Kill())
	killed.Wait() // it was killed: that is its error
	removed, err := RemoveStale(dir, "pool-")
	if err != nil || !slices.Equal(removed, []string{"pool-killed"}) {
		t.Errorf("one owner was killed, removed %v, %v", removed, err)
	}
	endLive()
	must(t, live.Wait())
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
