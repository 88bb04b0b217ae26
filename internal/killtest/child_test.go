package killtest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/holdfast-kv/holdfast/client"
	"golang.org/x/sys/unix"
)

// The environment of a client child.
const (
	endpointVariable = "HOLDFAST_KILLTEST_ENDPOINT"
	dirVariable      = "HOLDFAST_KILLTEST_DIR"
	poolVariable     = "HOLDFAST_KILLTEST_POOL"
	instanceVariable = "HOLDFAST_KILLTEST_INSTANCE"
)

// runClient answers commands until its standard input ends.
func runClient() {
	v := &victim{}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		word, argument, _ := strings.Cut(in.Text(), " ")
		n, _ := strconv.Atoi(argument)
		answer, err := v.obey(word, n)
		if err != nil {
			answer = "error: " + err.Error()
		}
		fmt.Println(answer)
	}
}

// victim is a client process, whole or with a store or a read left open.
type victim struct {
	hammer *hammer
	pool   []byte // a mapping of its own, which the client library does not know
	slots  []client.SlotRef
}

func (v *victim) obey(word string, n int) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch word {
	case "connect":
		return "connected", v.connect(ctx)
	case "disconnect":
		return "disconnected", v.hammer.client.Close()
	case "hammer":
		return v.pound(ctx, n)
	case "store": // the whole prompt
		ok, err := v.hammer.worker.Store(ctx, keyOf(n, 0, chunks, "victim"), fill(n, 0))
		return fmt.Sprint(ok), err
	case "prepare": // to store, and nothing more
		reply, err := v.hammer.worker.PrepareStore(ctx, keyOf(n, 0, chunks, "victim"))
		v.slots = reply.Slots
		return fmt.Sprint(len(v.slots)), err
	case "commit":
		ok, err := v.hammer.worker.CommitStore(ctx, keyOf(n, 0, chunks, "victim"))
		return fmt.Sprint(ok), err
	case "read": // begin to, and nothing more
		return v.read(ctx, n)
	case "write":
		for _, s := range v.slots {
			copy(v.pool[s.Offset:s.Offset+s.Length], stray)
		}
		return "written", nil
	case "intact":
		return fmt.Sprint(v.each(func(_ int, mem []byte) bool { return bytes.Equal(mem, stray) })), nil
	case "compare":
		want := make([]byte, objectBytes)
		return fmt.Sprint(v.each(func(i int, mem []byte) bool {
			content(want, n, i)
			return bytes.Equal(mem, want)
		})), nil
	}
	return "", fmt.Errorf("unknown command %q", word)
}

func (v *victim) connect(ctx context.Context) error {
	instance, err := strconv.ParseUint(os.Getenv(instanceVariable), 10, 64)
	if err != nil {
		return err
	}
	dir := os.Getenv(dirVariable)
	v.hammer, err = newHammer(ctx, os.Getenv(endpointVariable), dir, instance)
	if err != nil || v.pool != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, os.Getenv(poolVariable)), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	v.pool, err = unix.Mmap(int(f.Fd()), 0, poolBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return err
}

// pound makes n trips.
func (v *victim) pound(ctx context.Context, n int) (string, error) {
	h := v.hammer
	h.stores, h.loads, h.mismatches = 0, 0, 0
	for range n {
		if err := h.trip(ctx); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("stores %d loads %d mismatches %d", h.stores, h.loads, h.mismatches), nil
}

func (v *victim) read(ctx context.Context, n int) (string, error) {
	key := keyOf(n, 0, chunks, "victim reads")
	if err := v.hammer.client.Lookup(ctx, key); err != nil {
		return "", err
	}
	reply, err := v.hammer.worker.PrepareRetrieve(ctx, key)
	v.slots = reply.Slots
	return fmt.Sprint(len(v.slots)), err
}

// each reports whether every slot is as it should be.
func (v *victim) each(good func(i int, mem []byte) bool) bool {
	for i, s := range v.slots {
		if !good(i, v.pool[s.Offset:s.Offset+s.Length]) {
			return false
		}
	}
	return true
}
