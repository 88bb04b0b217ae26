//go:build killpoint

package crashtest

import (
	"fmt"
	"strings"
)

// survivor is a client with an open store or read that its server left behind.
type survivor struct {
	*child
	reads  bool
	prompt int
}

// victimize starts a client that is killed, or outlives the server. "" does nothing.
func (w *world) victimize(l *life, kind string) bool {
	w.t.Helper()
	if kind == "" {
		return true
	}
	w.instances++
	v := &survivor{prompt: victimPrompts + w.instances, reads: strings.HasPrefix(kind, "reader")}
	v.child = startChild(w.t, "victim", endpointVariable+"=ipc://"+w.socket(), poolVariable+"="+w.pool, fmt.Sprintf("%s=%d", instanceVariable, 1000+w.instances))
	command := "prepare"
	if v.reads {
		command, v.prompt = "read", w.low+w.random.IntN(w.prompts)
		if len(w.order) > 0 {
			v.prompt = w.order[w.random.IntN(len(w.order))]
		}
	}
	var a victimAnswer
	if err := v.ask(fmt.Sprint(command, " ", v.prompt), &a); err != nil {
		w.t.Fatal(err)
	}
	switch {
	case a.Error != "" && !w.while(l, "the server is dead, or the victim would be well: "+a.Error, func() bool { return false }):
		v.kill()
		return false
	case a.Slots == 0, strings.HasSuffix(kind, "dies"):
		v.kill()
	default:
		w.survivors = append(w.survivors, v)
	}
	return !l.dead()
}

// haunt lets survivors of an earlier server touch what they have, and looks whether they have it
// still after others have worked. Then they end.
func (w *world) haunt(l *life) bool {
	w.t.Helper()
	if len(w.survivors) == 0 {
		return true
	}
	for _, s := range w.survivors {
		if !s.reads {
			if err := s.ask("write", nil); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	if !w.worked(l, 6) {
		return false
	}
	for _, s := range w.survivors {
		command := "intact"
		if s.reads {
			command = fmt.Sprint("compare ", s.prompt)
		}
		var a victimAnswer
		if err := s.ask(command, &a); err != nil {
			w.t.Fatal(err)
		}
		if !a.Good {
			w.tally.Wrong++
			w.note("round %d: memory of a client that outlived its server was given to others (reader %t)", w.rounds, s.reads)
		}
	}
	w.exorcise()
	return !l.dead()
}

// exorcise ends the survivors.
func (w *world) exorcise() {
	for _, s := range w.survivors {
		s.kill()
	}
	w.survivors = nil
}
