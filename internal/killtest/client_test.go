package killtest

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// leftOver is what is to be seen after a client has gone.
type leftOver struct {
	wrong  int  // chunks with other bytes than they must have, loaded by others
	intact bool // what the client last saw in its slots is still there
	before int64
	after  int64 // bytes in quarantine, before and after proof
	found  int   // chunks of what it meant to store
	served bool  // its late commit was answered true
}

var nothingLeft = leftOver{intact: true}

// killedWriter lets a client be killed between PREPARE and COMMIT while others hammer the
// pool, and another while it is quiet, so that what it may have published is not evicted
// before it is looked for.
func killedWriter(t *testing.T, h *host) (left leftOver) {
	hammers := h.hammers(t)
	victim := h.newClient(t)
	victim.want(fmt.Sprint("prepare ", victimPrompt), fmt.Sprint(chunks))
	victim.want("write", "written")
	wait := pounding(t, hammers, 150)
	h.evictions(t, 30)
	left.intact = victim.do("intact") == "true"
	victim.kill()
	eventually(t, "the victim's instance goes", func() bool {
		return len(h.server.Status().Instances) == len(hammers)
	})
	left.wrong = wait()
	left.wrong += pounding(t, hammers, 30)()

	victim = h.newClient(t)
	victim.want(fmt.Sprint("prepare ", victimPrompt), fmt.Sprint(chunks))
	victim.kill()
	eventually(t, "the second victim's instance goes", func() bool {
		return len(h.server.Status().Instances) == len(hammers)
	})
	left.found = h.found(t)
	left.wrong += pounding(t, hammers, 30)()
	left.after = h.quarantined()
	return left
}

// The end of the process is the proof that frees what it had reserved; what it meant to
// store is absent. Over tcp the server has to find the process by itself.
func TestClientKilledBetweenPrepareAndCommit(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			h := newHost(t, network)
			if left := killedWriter(t, h); left != nothingLeft {
				t.Errorf("left over: %+v", left)
			}
			h.whole(t)
		})
	}
}

// stoppedWriter lets a client disappear without being dead: it has closed its connection,
// and the time for its store is over. It still has the pool mapped, sleeps, wakes and
// writes. In the end it gives its proof.
func stoppedWriter(t *testing.T, h *host, prove func(victim *child) (served bool)) (left leftOver) {
	hammers := h.hammers(t)
	victim := h.newClient(t)
	victim.want(fmt.Sprint("prepare ", victimPrompt), fmt.Sprint(chunks))
	victim.want("disconnect", "disconnected")
	eventually(t, "the victim is disconnected", func() bool { return h.connections(victim.pid()) == 0 })
	h.ahead.Add(int64(time.Hour))
	h.cache.Tick()

	victim.stop()
	left.wrong = pounding(t, hammers, 60)()
	wait := pounding(t, hammers, 90)
	h.evictions(t, 30)
	victim.signal(syscall.SIGCONT)
	victim.want("write", "written")
	left.wrong += wait()
	left.wrong += pounding(t, hammers, 30)()
	left.intact = victim.do("intact") == "true"
	left.before = h.quarantined()

	left.served = prove(victim)
	left.after = h.quarantined()
	left.found = h.found(t)
	return left
}

// commitsLate is the proof of a client that comes back.
func commitsLate(victim *child) (served bool) {
	victim.want("connect", "connected")
	return victim.do(fmt.Sprint("commit ", victimPrompt)) != "false"
}

// Nobody may ever see the bytes of a writer whose time is over: its slots are not reused
// until it proves that it has stopped, by a late commit or by its end.
func TestClientStoppedBetweenPrepareAndCommit(t *testing.T) {
	dies := func(h *host) func(*child) bool {
		return func(victim *child) bool {
			victim.kill()
			eventually(t, "the proof empties the quarantine", func() bool { return h.quarantined() == 0 })
			return false
		}
	}
	for _, tc := range []struct {
		name, network string
		proof         func(h *host) func(*child) bool
	}{
		{"commits late", "unix", func(*host) func(*child) bool { return commitsLate }},
		{"dies", "unix", dies},
		{"dies over tcp", "tcp", dies},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHost(t, tc.network)
			left := stoppedWriter(t, h, tc.proof(h))
			if want := (leftOver{intact: true, before: chunks * objectBytes}); left != want {
				t.Errorf("left over: %+v, want %+v", left, want)
			}
			h.whole(t)
		})
	}
}

// killedReader lets a client be killed while it reads what nobody else asks for, after it
// has slept for longer than its lease is meant to last.
func killedReader(t *testing.T, h *host) (left leftOver) {
	hammers := h.hammers(t)
	victim := h.newClient(t)
	victim.want(fmt.Sprint("store ", victimPrompt), "true")
	victim.want(fmt.Sprint("read ", victimPrompt), fmt.Sprint(chunks))
	victim.stop()
	h.ahead.Add(int64(time.Hour))
	h.cache.Tick()
	wait := pounding(t, hammers, 100)
	h.evictions(t, 60)
	left.wrong = wait()
	if err := h.client.Clear(testContext(t)); err != nil {
		t.Fatal(err)
	}
	left.found = h.found(t)
	victim.signal(syscall.SIGCONT)
	left.intact = victim.do(fmt.Sprint("compare ", victimPrompt)) == "true"
	victim.kill()
	return left
}

// The lease of a reader holds the objects as long as the reader lives, and not longer.
func TestClientKilledWhileReading(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			h := newHost(t, network)
			left := killedReader(t, h)
			if want := (leftOver{intact: true, found: chunks}); left != want {
				t.Errorf("left over: %+v, want %+v", left, want)
			}
			eventually(t, "the read ends", func() bool { return h.cache.Stats().Reading == 0 })
			h.whole(t)
		})
	}
}
