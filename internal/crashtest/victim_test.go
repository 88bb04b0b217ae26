//go:build killpoint

package crashtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/client"
)

// runVictim is a client that leaves a store or a read open until it is killed. Its own mapping of
// the pool outlives the server.
func runVictim() {
	v := &victim{}
	serveCommands(func(command string) any {
		word, argument, _ := strings.Cut(command, " ")
		n, _ := strconv.Atoi(argument)
		answer, err := v.obey(word, n)
		if err != nil {
			return victimAnswer{Error: err.Error()}
		}
		return answer
	})
}

// victimAnswer says how many slots the victim has, or that they are as they must be.
type victimAnswer struct {
	Slots int
	Good  bool
	Error string
}

type victim struct {
	client *client.Client
	worker *client.Worker
	pool   []byte
	slots  []client.SlotRef
}

// stray is what a victim writes.
var stray = bytes.Repeat([]byte{0xEE}, objectBytes)

func (v *victim) obey(word string, n int) (victimAnswer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch word {
	case "prepare":
		if err := v.connect(ctx); err != nil {
			return victimAnswer{}, err
		}
		reply, err := v.worker.PrepareStore(ctx, keyOf(n, 0, 0, chunks, "victim"))
		v.slots = reply.Slots
		return victimAnswer{Slots: len(v.slots)}, err
	case "read":
		if err := v.connect(ctx); err != nil {
			return victimAnswer{}, err
		}
		return v.read(ctx, n)
	case "write":
		for _, s := range v.slots {
			copy(v.mem(s), stray)
		}
		return victimAnswer{Slots: len(v.slots)}, nil
	case "intact":
		return v.each(func(_ int, mem []byte) bool { return bytes.Equal(mem, stray) }), nil
	case "compare":
		want := make([]byte, objectBytes)
		return v.each(func(i int, mem []byte) bool {
			content(want, n, 0, i)
			return bytes.Equal(mem, want)
		}), nil
	}
	return victimAnswer{}, fmt.Errorf("unknown command %q", word)
}

func (v *victim) connect(ctx context.Context) error {
	instance, err := strconv.ParseUint(os.Getenv(instanceVariable), 10, 32)
	if err != nil {
		return err
	}
	if v.client, err = client.Dial(ctx, os.Getenv(endpointVariable), client.Options{}); err != nil {
		return err
	}
	if v.worker, err = v.client.Register(ctx, registration(instance)); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join("/dev/shm", os.Getenv(poolVariable)), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	v.pool, err = unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return err
}

// read begins to read the longest prefix of a prompt that is there.
func (v *victim) read(ctx context.Context, n int) (a victimAnswer, err error) {
	if err := v.client.Lookup(ctx, keyOf(n, 0, 0, chunks, "victim")); err != nil {
		return a, err
	}
	hits, done, err := v.client.WaitPrefetch(ctx, "victim", patience)
	if err != nil || !done || hits == 0 {
		return a, err
	}
	reply, err := v.worker.PrepareRetrieve(ctx, keyOf(n, 0, 0, hits, "victim"))
	v.slots = reply.Slots
	return victimAnswer{Slots: len(v.slots)}, err
}

func (v *victim) mem(s client.SlotRef) []byte { return v.pool[s.Offset : s.Offset+s.Length] }

// each asks about every slot.
func (v *victim) each(good func(i int, mem []byte) bool) victimAnswer {
	for i, s := range v.slots {
		if !good(i, v.mem(s)) {
			return victimAnswer{Slots: len(v.slots)}
		}
	}
	return victimAnswer{Slots: len(v.slots), Good: true}
}
