#!/usr/bin/env bash
# Measures every figure that docs/performance.md promises and prints the table, in Markdown,
# with the load of the machine beside each. Takes about fifteen minutes; nothing else should run.
#
#   ./bench.sh          all of it
#   ./bench.sh NAME...  only the benchmarks whose name contains one of these: SHM, Noop, ...
#
# HOLDFAST_BENCH_DIR is where the files of disks are made; default: where temporary files are.
#
# A figure is the median of several runs of a benchmark, and most benchmarks report a median
# themselves. The exit code is 1 if one misses its target.
set -euo pipefail
cd "$(dirname "$0")"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
wanted=("$@")
missed=0
row_load=""

load() { cut -d' ' -f1 /proc/loadavg; }

# measure PACKAGE BENCHMARK BENCHTIME COUNT runs one benchmark into $scratch/out.
measure() {
  local package=$1 name=$2 time=$3 count=$4 before
  before=$(load)
  go test "$package" -run '^$' -bench "$name" -benchtime "$time" -count "$count" -timeout 300s >"$scratch/out" 2>&1 ||
    { cat "$scratch/out" >&2; exit 1; }
  row_load="$before–$(load)"
}

# value NAME UNIT is the median of a metric over the runs of one benchmark.
value() {
  awk -v name="Benchmark$1" -v unit="$2" '
    { sub(/-[0-9]+$/, "", $1) }
    $1 == name { for (i = 3; i < NF; i++) if ($(i + 1) == unit) print $i }' "$scratch/out" |
    sort -g | awk '{ v[NR] = $1 } END { if (NR == 0) exit 1; print v[int((NR + 1) / 2)] }'
}

# row WHAT UNIT SCALE NAME [OP TARGET] prints a figure; without a target it is for information.
row() {
  local what=$1 unit=$2 scale=$3 name=$4 op=${5:-} target=${6:-} n verdict=""
  n=$(value "$name" "$unit") || { echo "no $unit in the output of $name" >&2; cat "$scratch/out" >&2; exit 1; }
  n=$(awk -v n="$n" -v s="$scale" 'BEGIN { n *= s; printf(n < 10 ? "%.2f" : n < 100 ? "%.1f" : "%.0f", n) }')
  case $op in
  '≤') verdict=$(awk -v n="$n" -v t="$target" 'BEGIN { print (n <= t) ? "met" : "**missed**" }') ;;
  '≥') verdict=$(awk -v n="$n" -v t="$target" 'BEGIN { print (n >= t) ? "met" : "**missed**" }') ;;
  esac
  [ "$verdict" != "**missed**" ] || missed=$((missed + 1))
  printf '| %s | %s | %s | %s | %s | `%s` |\n' "$what" "${op:+$op $target}" "$n" "$verdict" "$row_load" "$name"
}

# want NAME says whether the benchmark was asked for.
want() {
  [ ${#wanted[@]} -gt 0 ] || return 0
  local w
  for w in "${wanted[@]}"; do [[ $1 != *"$w"* ]] || return 0; done
  return 1
}

noop() {
  measure ./client '^BenchmarkNoop$' 10000x 3
  row 'NOOP round trip, × bare socket ping-pong' x-bare 1 Noop/background '≤' 2.5
  row 'the same with a context that can end' x-bare 1 Noop/cancellable '≤' 2.5
}

shm() {
  local mode name target=0.90
  for mode in verify=off/sums=client verify=sampled/sums=client; do
    name="SHM/$mode/inflight=four"
    measure ./internal/bench "^BenchmarkSHM\$/${name#SHM/}" 15x 5
    row "shared memory, store, ${mode//\// }, × memcpy" store-x-memcpy 1 "$name" '≥' $target
    row 'load' load-x-memcpy 1 "$name" '≥' $target
    row 'store and load in turns' mixed-x-memcpy 1 "$name" '≥' $target
    row 'the same in GB/s' mixed-GB/s 1 "$name"
    target=0.85
  done
  name=SHM/verify=off/sums=none/inflight=four
  measure ./internal/bench "^BenchmarkSHM\$/${name#SHM/}" 15x 3
  row 'nobody takes checksums: store' store-x-memcpy 1 "$name"
  row 'load' load-x-memcpy 1 "$name"
  row 'store and load in turns' mixed-x-memcpy 1 "$name"
  name=SHM/verify=sampled/sums=server/inflight=four
  measure ./internal/bench "^BenchmarkSHM\$/${name#SHM/}" 15x 3
  row 'checksums taken by the server: store' store-x-memcpy 1 "$name"
  row 'the same in GB/s' store-GB/s 1 "$name"
  row 'load' load-x-memcpy 1 "$name"
  row 'store and load in turns' mixed-x-memcpy 1 "$name"
  measure ./internal/bench '^BenchmarkSHM$/verify=(off|sampled)/sums=client/inflight=one' 15x 2
  row 'one transfer at a time: store, verify off, × memcpy' store-x-memcpy 1 SHM/verify=off/sums=client/inflight=one
  row 'load' load-x-memcpy 1 SHM/verify=off/sums=client/inflight=one
  row 'one transfer at a time: store, verify sampled' store-x-memcpy 1 SHM/verify=sampled/sums=client/inflight=one
}

prepare_commit() {
  measure ./client '^BenchmarkPrepareCommit$' 5000x 3
  row 'PREPARE + COMMIT of 40 chunks, no copy, verify off, µs' p50-µs 1 PrepareCommit '≤' 250
}

lookup() {
  measure ./internal/server '^BenchmarkLookup$' 300x 3
  row 'LOOKUP of 100,000 tokens, server side, first, ms' server-ns/op 1e-6 Lookup/first '≤' 2.5
  row 'the same, grown by one chunk, ms' server-ns/op 1e-6 Lookup/grown '≤' 0.6
}

copying() {
  measure ./client '^Benchmark(Store|Retrieve)Copy$' 150x 3
  row 'pickle mode, store, × bare socket' x-bare 1 StoreCopy '≥' 0.5
  row 'pickle mode, load' x-bare 1 RetrieveCopy '≥' 0.5
}

allocator() {
  measure ./internal/arena '^BenchmarkReserve$' 2000x 1
  row 'allocator, equal sizes, ns a slot' p50-ns/slot 1 Reserve/one '≤' 300
  row 'allocator, sizes of several models, ns a slot' p50-ns/slot 1 Reserve/models '≤' 300
  row 'allocator, any sizes, ns a slot' p50-ns/slot 1 Reserve/uniform '≤' 300
  row 'allocator, 4 KiB to 4 MiB, ns a slot' p50-ns/slot 1 Reserve/wide '≤' 300
  measure ./internal/arena '^BenchmarkFirstRefusal$' 1x 1
  row 'pool used at the first refusal, sizes of several models, %' %used-fresh 1 FirstRefusal/models '≥' 95
  row 'any sizes, %' %used-fresh 1 FirstRefusal/uniform '≥' 95
  row '4 KiB to 4 MiB, %' %used-fresh 1 FirstRefusal/wide '≥' 95
}

ready() {
  measure ./internal/bench '^BenchmarkReady$' 5x 1
  row 'exec to first answer, pool of 16 GiB, ms' ready-ms 1 Ready '≤' 200
}

restart() {
  measure ./internal/bench '^BenchmarkRestart$' 3x 1
  row 'exec to first verified hit, 16 GiB and 100,000 objects, after a stop, ms' first-hit-ms 1 Restart/stopped '≤' 500
  row 'the same, after SIGKILL, ms' first-hit-ms 1 Restart/killed '≤' 500
}

resident() {
  measure ./internal/bench '^BenchmarkResident$' 1x 1
  row 'resident beside the pool after work, MiB' MiB-beside-pool 1 Resident '≤' 64
}

index() {
  measure ./internal/cache '^BenchmarkIndexBytesPerChunk$' 1x 1
  row 'index at 1 Mi chunks in long prompts, with records, B a chunk' B/chunk 1 IndexBytesPerChunk/prompts '≤' 400
  row 'the same, every chunk on its own, B a chunk' B/chunk 1 IndexBytesPerChunk/singles '≤' 400
}

price() {
  measure ./internal/bench '^BenchmarkPrice$' 100x 2
  row 'a miss: lookup of 10,240 tokens and its answer, µs' miss-µs 1 Price
  row 'store of 40 MiB with verify sampled, × off' sampled-store-x-off 1 Price
  row 'load of 40 MiB with verify sampled, × off' sampled-load-x-off 1 Price
  row 'store of 40 MiB with verify always, × off' always-store-x-off 1 Price
  row 'load of 40 MiB with verify always, × off' always-load-x-off 1 Price
}

valkey() {
  local size
  measure ./internal/tier/valkey '^BenchmarkValkey$' 2s 3
  for size in 1024 4096; do
    row "Valkey, put of objects of $size KiB, × bare client" put-x-bare 1 "Valkey/${size}KiB" '≥' 0.8
    row 'get' get-x-bare 1 "Valkey/${size}KiB" '≥' 0.8
    row 'put in GB/s' put-GB/s 1 "Valkey/${size}KiB"
    row 'get in GB/s' get-GB/s 1 "Valkey/${size}KiB"
  done
  row 'objects of 64 KiB: put, × bare client' put-x-bare 1 Valkey/64KiB
  row 'get' get-x-bare 1 Valkey/64KiB
}

miss() {
  measure ./internal/server '^BenchmarkLookupMiss$' 3000x 3
  row 'a lookup with nothing anywhere, with a tier, × without' of-without 1 LookupMiss '≤' 1.2
  measure ./internal/cache '^BenchmarkLookupMiss$' 300x 3
  row "the same within the cache, without the request around it, ns" ns-with 1 LookupMiss
  row 'without a tier, ns' ns-without 1 LookupMiss
}

moves() {
  local size target=0.5
  for size in 64 1024 4096; do
    measure ./internal/bench "^BenchmarkMoves\$/^${size}KiB\$" 1x 1
    row "write-behind of objects of $size KiB to a full disk, × fio, both synced" write-behind/fio 1 "Moves/${size}KiB" '≥' $target
    row 'prefetch from it' prefetch/fio 1 "Moves/${size}KiB" '≥' $target
    row 'write-behind in MB/s' out-MB/s 1 "Moves/${size}KiB"
    row 'prefetch in MB/s' in-MB/s 1 "Moves/${size}KiB"
    target=0.85
  done
}

disk() {
  local size sync name target=0.5
  for size in 64 1024 4096; do
    for sync in none data; do
      name="Store/${size}KiB/$sync"
      measure ./internal/tier/disk "^BenchmarkStore\$/^${size}KiB\$/^$sync\$" 1x 1
      row "put of objects of $size KiB into a full disk, sync $sync, × fio" put/fio 1 "$name" '≥' $target
      row 'get' get/fio 1 "$name" '≥' $target
      row 'put into an empty disk' fill/fio 1 "$name"
      row 'put in MB/s' put-MB/s 1 "$name"
      row 'get in MB/s' get-MB/s 1 "$name"
    done
    target=0.85
  done
}

scan() {
  measure ./internal/tier/disk '^BenchmarkScan$/^100000$' 3x 1
  row 'start of a disk with 100,000 objects: until all are found, s' s-names 1 Scan/100000
  row 'until their ages are known, s' s-all 1 Scan/100000 '≤' 5
  row 'index of a disk, B an object' B/object 1 Scan/100000
}

connector() {
  local way what
  measure ./internal/sim '^BenchmarkSimulate$' 200x 3
  row 'simulator, steps of scheduler, worker and device a minute, millions' actions/min 1e-6 Simulate '≥' 1
  for way in direct staged2 staged; do
    case $way in
    direct) what='direct device, × one copy in whole chunks' ;;
    staged2) what='staging of 2 chunks, the default, × two copies' ;;
    staged) what='staging of 4 chunks, × two copies' ;;
    esac
    measure ./offload/worker "^Benchmark(SaveToLocalStore|LoadFromLocalStore|SaveToServer|LoadFromServer)\$/^$way\$" 40x 3
    row "$what: save, store in this process" ratio 1 "SaveToLocalStore/$way/consecutive" '≥' 0.80
    row 'load' ratio 1 "LoadFromLocalStore/$way/consecutive" '≥' 0.80
    row 'save, store on a server' ratio 1 "SaveToServer/$way/consecutive" '≥' 0.80
    row 'load' ratio 1 "LoadFromServer/$way/consecutive" '≥' 0.80
    row 'save to a server, blocks scattered' ratio 1 "SaveToServer/$way/scattered"
    row 'load' ratio 1 "LoadFromServer/$way/scattered"
  done
  measure ./offload '^BenchmarkBuildMeta' 3000x 3
  row '`BuildMeta` over 256 tracked requests, nothing to do, × 20 µs' of-limit 1 BuildMetaIdle '≤' 1
  row 'its allocations' allocs/op 1 BuildMetaIdle '≤' 0
  row '`BuildMeta` over 256 tracked requests, 16 saves due, × 150 µs' of-limit 1 BuildMeta16Saves '≤' 1
  measure ./internal/qualify '^BenchmarkLookupMiss$' 2000x 3
  row "a lookup that misses, on the engine's side beyond the round trips, store in this process, µs" added-µs 1 LookupMiss/local '≤' 100
  row 'store on a server, µs' added-µs 1 LookupMiss/server '≤' 100
}

# Built beforehand, not within a measurement.
go test -run '^$' ./client ./offload/... ./internal/{arena,bench,cache,qualify,server,sim,tier/disk,tier/valkey} >/dev/null
printf '%s, %s processors, %s; load average %s\n\n' \
  "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)" "$(nproc)" "$(go env GOVERSION)" "$(load)"
echo '| what | target | measured | | load | benchmark |'
echo '| --- | --- | --- | --- | --- | --- |'
! want Noop || noop
! want SHM || shm
! want PrepareCommit || prepare_commit
! want Lookup || lookup
! want Copy || copying
! want Allocator || allocator
! want Ready || ready
! want Restart || restart
! want Resident || resident
! want Index || index
! want Price || price
! want Valkey || valkey
! want LookupMiss || miss
! want Moves || moves
! want Disk || disk
! want Scan || scan
! want Connector || connector
printf '\n%d s, %d missed\n' "$SECONDS" "$missed"
[ "$missed" -eq 0 ]
