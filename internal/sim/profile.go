package sim

import (
	"errors"
	"fmt"
	"strings"
)

// MaxRanks bounds Script.Ranks.
const MaxRanks = 8

// Profile says what may go wrong in a run.
type Profile string

// The profiles.
const (
	// NoFaults: nothing fails. Requests are still aborted, preempted and cancelled, ids used again, objects
	// evicted, and answers late, doubled and out of order.
	NoFaults Profile = "none"
	// Provable: calls fail in ways after which everything can be proven, so nothing may be left over.
	Provable Profile = "provable"
	// AllFaults: also lost answers, silent ranks and failing devices, after which memory stays held and the
	// engine must stop at the deadline.
	AllFaults Profile = "all"
)

// ErrProfile is wrapped by the error for an unknown profile.
var ErrProfile = errors.New("unknown fault profile")

// Profiles are all, the mildest first.
func Profiles() []Profile { return []Profile{NoFaults, Provable, AllFaults} }

// ParseProfile returns the profile of that name.
func ParseProfile(name string) (Profile, error) {
	for _, p := range Profiles() {
		if name == string(p) {
			return p, nil
		}
	}
	return "", fmt.Errorf("%w %q: must be one of %v", ErrProfile, name, Profiles())
}

// fault is a class of faults. A run has some of the classes only, so that one does not hide
// what another would show.
type fault uint8

const (
	faultEvent   fault = iota // an event cannot be created, recorded or waited for
	faultEnqueue              // a copy, gather or scatter is not taken
	faultQuery                // an event or a stream cannot be asked
	faultMemory               // a stream, staging or a registration is refused
	faultPrepare              // the store refuses a save
	faultCommit               // a commit is false or fails
	faultAbort                // an abort fails
	faultBegin                // a load misses, or the store refuses it
	faultEnd                  // the end of a load fails
	faultLookup               // a lookup is not taken or not answered
	faultUnpin                // a pin or a session is not taken back at once
	faultCorrupt              // a stored byte changes
	faultClock                // the clock jumps past the store's limits, not to the deadline
	faultClose                // ranks are closed while transfers run
	faultRestart              // the store's server is killed, and another one takes over its memory
	faultTier                 // a call of a tier fails, before or after it has an effect
	faultLose                 // a tier loses an object
	faultFlip                 // a byte that a tier keeps changes
	faultDeaf                 // a call of a tier takes long, whatever its context says
	faultLate                 // a deadline of the cache passes
	faultClear                // memory and tiers are cleared
	faultPower                // the power of a disk fails
	faultLost                 // an answer of a rank never arrives
	faultSilent               // a rank stops answering
	faultDevice               // an operation fails and with it the device
	faults
)

// provableFaults are the classes below it.
const provableFaults = faultLost

var faultNames = [faults]string{
	"event", "enqueue", "query", "memory", "prepare", "commit", "abort", "begin-load", "end-load", "lookup", "unpin",
	"corrupt", "clock", "close", "restart",
	"tier", "tier-loss", "tier-corrupt", "tier-deaf", "tier-late", "clear", "power", "lost", "silent", "device",
}

// rates say once in how many chances a fault of a class happens.
var rates = [faults]int{
	faultEvent: 40, faultEnqueue: 60, faultQuery: 60, faultMemory: 40, faultPrepare: 12, faultCommit: 10, faultAbort: 4,
	faultBegin: 8, faultEnd: 10, faultLookup: 8, faultUnpin: 6, faultCorrupt: 50, faultClock: 60, faultClose: 300, faultRestart: 25,
	faultTier: 25, faultLose: 8, faultFlip: 8, faultDeaf: 8, faultLate: 3, faultClear: 40, faultPower: 40,
	faultLost: 60, faultSilent: 150, faultDevice: 1500,
}

// faultSet draws the classes of a run.
func (p Profile) faultSet(c *choices) (set [faults]bool) {
	for f := range faults {
		within := f < provableFaults && p != NoFaults || p == AllFaults
		rare := f >= provableFaults
		draw := c.IntN(6)
		set[f] = within && (draw >= 3 && !rare || draw == 5)
	}
	return set
}

// Injected counts the faults of a run by class.
type Injected [faults]uint64

// String lists the classes that happened.
func (n Injected) String() string {
	var parts []string
	for f, count := range n {
		if count > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", faultNames[f], count))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// Map gives the counts by name.
func (n Injected) Map() map[string]uint64 {
	m := make(map[string]uint64, len(n))
	for f, count := range n {
		m[faultNames[f]] = count
	}
	return m
}
