//go:build killpoint

package crashtest

import (
	"slices"

	"github.com/holdfast-kv/holdfast/internal/killpoint"
)

const mib = 1 << 20

// The worlds, one after the other. Each fits into the 64 MiB of /dev/shm that containers have: a
// table full of names, which memory's servers get, is of 40. Where nothing is evicted, everything that is safe must be found.
func worlds() []settings {
	store := []killpoint.Point{
		killpoint.ReserveBeforeState, killpoint.ReserveAfterState, killpoint.SettleBeforeState, killpoint.SettleBeforeSum,
		killpoint.SumBeforeState, killpoint.StoreBeforeCommit, killpoint.StoreBeforeAnswer,
		killpoint.ClearBeforeState, killpoint.ClearAfterState,
		killpoint.AdoptBeforeHeader, killpoint.AdoptMidway, killpoint.AdoptBeforeServe, killpoint.AdoptBeforeTrust,
	}
	life := []killpoint.Point{
		killpoint.PeerBeforeHolder, killpoint.PeerBeforeClear, killpoint.SpaceBeforeCount, killpoint.SpaceBeforeSwitch,
		killpoint.TakeOverBeforeBind, killpoint.TakeOverBeforePool, killpoint.StopBeforeSeal, killpoint.StopBeforeRelease,
	}
	move := []killpoint.Point{
		killpoint.EvictBeforeRelease, killpoint.WriteBehindBeforePut, killpoint.WriteBehindAfterPut,
		killpoint.PrefetchBeforeGet, killpoint.PrefetchBeforeSettle, killpoint.ClearBeforeTier,
		killpoint.DiskBeforeScan, killpoint.DiskMidwayScan, killpoint.DiskBeforeSync, killpoint.DiskBeforeRename,
	}
	return []settings{
		{
			name: "memory", poolBytes: 16 * mib, prompts: 48, keeps: inMemory, share: 35,
			points: slices.Concat(store, life),
		},
		{
			name: "disk", poolBytes: 2 * mib, diskBytes: 96 * mib, prompts: 96, keeps: onDisk, share: 35,
			points: slices.Concat(store, move, []killpoint.Point{
				killpoint.DiskBeforeUnlink, killpoint.QuarantineBeforeOwner,
				killpoint.TakeOverBeforeBind, killpoint.TakeOverBeforePool, killpoint.StopBeforeSeal, killpoint.StopBeforeRelease,
			}),
		},
		{
			name: "full", poolBytes: mib, diskBytes: 4 * mib, prompts: 160, keeps: nowhere, share: 30,
			points: slices.Concat(store, move, []killpoint.Point{killpoint.DiskBeforeUnlink, killpoint.PrefetchAfterAbandon}),
		},
	}
}
