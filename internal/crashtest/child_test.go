//go:build killpoint

package crashtest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
)

// child is another process of this test binary. It answers each line with one line of JSON.
type child struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	once sync.Once
}

func startChild(t *testing.T, role string, environment ...string) *child {
	t.Helper()
	c := &child{cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(append(os.Environ(), roleVariable+"="+role), environment...)
	c.cmd.Stderr = os.Stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	return c
}

// ask gives a command and decodes the answer, if answer is not nil.
func (c *child) ask(command string, answer any) error {
	if _, err := fmt.Fprintln(c.in, command); err != nil {
		return fmt.Errorf("%.40s: %w", command, err)
	}
	line, err := c.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("%.40s: %w", command, err)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(line, answer)
}

// kill kills the process and waits for its end.
func (c *child) kill() {
	c.once.Do(func() {
		_ = c.cmd.Process.Kill() // it may have ended
		_ = c.cmd.Wait()
	})
}

// end closes the child's input, which ends it, and returns how.
func (c *child) end() (err error) {
	c.once.Do(func() {
		c.in.Close()
		err = c.cmd.Wait()
	})
	return err
}

// serveCommands answers commands until standard input ends.
func serveCommands(obey func(command string) any) {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		if err := out.Encode(obey(in.Text())); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
