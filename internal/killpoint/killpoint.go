// Package killpoint names the moments at which a crash is most likely to leave something
// half done, and lets a test end the process there. In builds with the tag `killpoint` or
// `sabotage` Hit kills the process, as SIGKILL does, at the point that the environment
// names; in all others it is empty and the compiler drops it.
//
//	HOLDFAST_KILLPOINT=settle.before-state      the first time the point is reached
//	HOLDFAST_KILLPOINT=settle.before-state:40   the 40th time
//
// A test starts a child process with this environment, lets it work until it is killed, and
// looks at what it left: see internal/arena, internal/killtest and internal/crashtest.
package killpoint

// Variable is the environment variable that arms a point.
const Variable = "HOLDFAST_KILLPOINT"

// Point is the name of one moment: what is being done, and what has not happened yet.
type Point string

// The points, in the order in which an object meets them. Hit takes no other.
const (
	// Of the records that a restart adopts (internal/arena).
	ReserveBeforeState    Point = "reserve.before-state"    // the record says where, not yet that it is reserved
	ReserveAfterState     Point = "reserve.after-state"     // nobody was told of the slot yet
	SettleBeforeState     Point = "settle.before-state"     // labelled, and still reserved
	SettleBeforeSum       Point = "settle.before-sum"       // settled, the checksum not there
	SumBeforeState        Point = "sum.before-state"        // the checksum is there, and not yet declared
	QuarantineBeforeOwner Point = "quarantine.before-owner" // in quarantine, for whom is not written
	ClearBeforeState      Point = "clear.before-state"      // about to be freed
	ClearAfterState       Point = "clear.after-state"       // freed, its memory not in the free lists
	PeerBeforeHolder      Point = "peer.before-holder"      // a peer's entry is written, and not yet declared
	PeerBeforeClear       Point = "peer.before-clear"       // a changed peer has two entries
	SpaceBeforeCount      Point = "space.before-count"      // a namespace is written, and not yet counted
	SpaceBeforeSwitch     Point = "space.before-switch"     // the names are in the other half, which is not used yet

	// Of the adoption and of the end of a server (internal/arena, internal/daemon).
	AdoptBeforeHeader  Point = "adopt.before-header"   // the old pool is locked, nothing was changed
	AdoptMidway        Point = "adopt.midway"          // some records were judged
	AdoptBeforeServe   Point = "adopt.before-serve"    // adopted, nobody was answered
	AdoptBeforeTrust   Point = "adopt.before-trust"    // an adopted object was compared, that is not noted
	TakeOverBeforeBind Point = "take-over.before-bind" // the running server was asked for its place
	TakeOverBeforePool Point = "take-over.before-pool" // it has ended, its addresses are ours
	StopBeforeSeal     Point = "stop.before-seal"      // drained, checksums are missing
	StopBeforeRelease  Point = "stop.before-release"   // drained and recorded, the pool is still ours

	// Of the objects' moves between memory and second-level stores (internal/cache, internal/tier).
	StoreBeforeCommit    Point = "store.before-commit"     // the writer's commit has come, nothing was done
	StoreBeforeAnswer    Point = "store.before-answer"     // settled, the writer was not told
	EvictBeforeRelease   Point = "evict.before-release"    // chosen, its memory is not free
	WriteBehindBeforePut Point = "write-behind.before-put" // the tier is about to be given objects
	WriteBehindAfterPut  Point = "write-behind.after-put"  // the tier has them, the cache does not know it
	PrefetchBeforeGet    Point = "prefetch.before-get"     // memory is reserved for what is loaded
	PrefetchBeforeSettle Point = "prefetch.before-settle"  // loaded, and not served
	PrefetchAfterAbandon Point = "prefetch.after-abandon"  // past its deadline, the tier may still write
	ClearBeforeTier      Point = "clear.before-tier"       // a tier's puts have ended, nothing of it is deleted
	DiskBeforeScan       Point = "disk.before-scan"        // opened, the last life's unfinished files are there
	DiskMidwayScan       Point = "disk.midway-scan"        // some files are found, lookups are answered
	DiskBeforeSync       Point = "disk.before-sync"        // written, not durable
	DiskBeforeRename     Point = "disk.before-rename"      // durable, without its name
	DiskBeforeUnlink     Point = "disk.before-unlink"      // out of the index, its file is there
)

// Points returns all of them.
func Points() []Point {
	return []Point{
		ReserveBeforeState, ReserveAfterState, SettleBeforeState, SettleBeforeSum, SumBeforeState,
		QuarantineBeforeOwner, ClearBeforeState, ClearAfterState,
		PeerBeforeHolder, PeerBeforeClear, SpaceBeforeCount, SpaceBeforeSwitch,
		AdoptBeforeHeader, AdoptMidway, AdoptBeforeServe, AdoptBeforeTrust,
		TakeOverBeforeBind, TakeOverBeforePool, StopBeforeSeal, StopBeforeRelease,
		StoreBeforeCommit, StoreBeforeAnswer, EvictBeforeRelease, WriteBehindBeforePut, WriteBehindAfterPut,
		PrefetchBeforeGet, PrefetchBeforeSettle, PrefetchAfterAbandon, ClearBeforeTier,
		DiskBeforeScan, DiskMidwayScan, DiskBeforeSync, DiskBeforeRename, DiskBeforeUnlink,
	}
}
