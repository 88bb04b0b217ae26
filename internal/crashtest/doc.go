// Package crashtest has only tests. Real servers (the program itself, `holdfast serve`, with the
// kill points of internal/killpoint compiled in) are killed again and again, at every named point
// and at random moments, and started again at once; real engines, processes of the test binary,
// live through all of it, store, look up, load and compare every byte. Demanded is:
//
//   - no engine ever sees a byte that was not stored for it, or has to be started again;
//   - what the server's status shows as safe is there after the kill: on disk what its tier has
//     written, in memory what has its checksum;
//   - what clients of a killed server may still touch is not given to others, and free as soon
//     as they are gone; in the end nothing is reserved, leased, quarantined or counted wrongly;
//   - no file is left in /dev/shm, of the disk tier or of the socket.
//
// Every point must be reached. The tests have the build tag killpoint, and run alone, because a
// server that starts removes the pools that killed ones of other names have left:
//
//	go test -v -tags killpoint ./internal/crashtest
//	go test -v -tags killpoint,sabotage ./internal/crashtest
//
// Variables choose more:
//
//	HOLDFAST_CRASH_ROUNDS=500   kills; the default is a short run
//	HOLDFAST_CRASH_SEED=1       replays the same sequence of kills; each run prints its seed
//	HOLDFAST_CRASH_LOGS=DIR     where the servers' logs go
package crashtest
