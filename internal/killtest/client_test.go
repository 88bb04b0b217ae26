package killtest

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// A client is killed between PREPARE and COMMIT while others hammer the pool. Its end is
// the proof that frees what it had reserved; what it meant to store is absent. Over tcp
// the server has to find the process by itself.
func TestClientKilledBetweenPrepareAndCommit(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			h := newHost(t, network)
			hammers := h.hammers(t)
			victim := h.newClient(t)
			victim.want(fmt.Sprint("prepare ", victimPrompt), fmt.Sprint(chunks))
			victim.want("write", "written")
			wait := pounding(t, hammers, 150)
			h.evictions(t, 30)
			victim.want("intact", "true")
			victim.kill()
			eventually(t, "the victim's instance goes", func() bool {
				return len(h.server.Status().Instances) == len(hammers)
			})
			h.evictions(t, 30)
			wait()
			if rows := h.cache.Quarantined(); len(rows) != 0 {
				t.Errorf("quarantined after proof: %+v", rows)
			}
			h.settled(t)
		})
	}
}

// A client disappears without being dead: it has closed its connection, and the time for its
// store is over. It still has the pool mapped, sleeps, wakes and writes. Nobody may ever
// see those bytes: its slots are not reused until it proves that it has stopped, by a late
// commit or by its end.
func TestClientStoppedBetweenPrepareAndCommit(t *testing.T) {
	for _, tc := range []struct {
		network string
		proof   func(h *host, victim *child)
	}{
		{"unix", func(h *host, victim *child) {
			victim.want("connect", "connected")
			victim.want(fmt.Sprint("commit ", victimPrompt), "false")
		}},
		{"unix", func(_ *host, victim *child) { victim.kill() }},
		{"tcp", func(_ *host, victim *child) { victim.stop(); victim.kill() }},
	} {
		t.Run(tc.network, func(t *testing.T) {
			h := newHost(t, tc.network)
			hammers := h.hammers(t)
			victim := h.newClient(t)
			victim.want(fmt.Sprint("prepare ", victimPrompt), fmt.Sprint(chunks))
			victim.want("disconnect", "disconnected")
			eventually(t, "the victim is disconnected", func() bool { return h.connections(victim.pid()) == 0 })
			h.ahead.Add(int64(time.Hour))
			h.cache.Tick()
			quarantined := func() int64 { return h.cache.Stats().Arena.QuarantinedBytes }
			if quarantined() != chunks*objectBytes {
				t.Fatalf("%d bytes are quarantined, want the victim's %d", quarantined(), chunks*objectBytes)
			}

			victim.stop()
			pounding(t, hammers, 60)()
			wait := pounding(t, hammers, 90)
			h.evictions(t, 30)
			victim.signal(syscall.SIGCONT)
			victim.want("write", "written")
			h.evictions(t, 30)
			wait()
			victim.want("intact", "true")
			if quarantined() != chunks*objectBytes {
				t.Errorf("%d bytes are quarantined before proof, want %d", quarantined(), chunks*objectBytes)
			}

			tc.proof(h, victim)
			eventually(t, "the proof empties the quarantine", func() bool { return quarantined() == 0 })
			h.settled(t)
		})
	}
}

// A client is killed while it reads. Its lease holds the objects as long as it lives, and
// not longer.
func TestClientKilledWhileReading(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			h := newHost(t, network)
			hammers := h.hammers(t)
			victim := h.newClient(t)
			victim.want(fmt.Sprint("store ", victimPrompt), "true")
			victim.want(fmt.Sprint("read ", victimPrompt), fmt.Sprint(chunks))
			if n := h.cache.Stats().Reading; n != 1 {
				t.Fatalf("%d reads are open", n)
			}
			victim.stop()
			wait := pounding(t, hammers, 100)
			h.evictions(t, 60)
			wait()
			if err := h.client.Clear(testContext(t)); err != nil {
				t.Fatal(err)
			}
			if n := h.cache.Stats().Objects; n != chunks {
				t.Errorf("%d objects are left, want the %d being read", n, chunks)
			}
			victim.signal(syscall.SIGCONT)
			victim.want(fmt.Sprint("compare ", victimPrompt), "true")

			victim.kill()
			eventually(t, "the read ends", func() bool { return h.cache.Stats().Reading == 0 })
			h.whole(t)
		})
	}
}
