#!/usr/bin/env bash
# Checks everything: build, static analysis, all tests with the race detector, the sabotage
# and invariants builds, a short fuzz of every parser, and the program itself on a trace.
#
#   ./test.sh                     from a fresh clone; needs Go and git, on Debian or alike
#   HOLDFAST_TRACE=FILE ./test.sh the trace to replay (Mooncake format)
#   HOLDFAST_CRASH_ROUNDS=N, HOLDFAST_CRASH_SEED=N: how often servers are killed, and when
#
# Nothing is skipped: where a real peer (libzmq through Python, a Redis, an S3 server), fio or
# a C compiler (for the race detector) is missing, it is installed if that is allowed, and
# else this fails.
set -euo pipefail
cd "$(dirname "$0")"

passed=0
current="start"
scratch=$(mktemp -d)
child=""

finish() {
  local rc=$?
  [ -z "$child" ] || kill -KILL "$child" 2>/dev/null || true
  rm -rf "$scratch"
  if [ "$rc" -ne 0 ]; then
    printf '\n%d passed, 1 failed: %s, %d not run\n' "$passed" "$current" "$(($(grep -c '^step "' "$0") - passed - 1))"
  fi
}
trap finish EXIT

# step NAME COMMAND... runs one step. The command is not run under a condition, so that
# `set -e` works inside functions.
step() {
  current=$1
  shift
  printf '\n== %s\n' "$current"
  local began=$SECONDS
  "$@"
  passed=$((passed + 1))
  printf '== %s: ok, %d s\n' "$current" "$((SECONDS - began))"
}

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# --- what the tests need besides Go -----------------------------------------------------

have_peer() { /usr/bin/python3 -c 'import zmq, msgpack' 2>/dev/null; }
have_redis() { command -v redis-server >/dev/null || command -v valkey-server >/dev/null; }
have_fio() { command -v fio >/dev/null; }
have_cc() { printf 'int main(void) { return 0; }\n' | gcc -x c -o "$scratch/cc" - 2>/dev/null; }

prerequisites() {
  command -v go >/dev/null || fail "Go is not installed: see https://go.dev/doc/install"
  local missing=()
  have_peer || missing+=(python3 python3-zmq python3-msgpack)
  have_cc || missing+=(gcc libc6-dev)
  have_redis || missing+=(redis-server)
  have_fio || missing+=(fio)
  if [ ${#missing[@]} -gt 0 ]; then
    install "${missing[@]}"
  fi
  have_peer || fail "/usr/bin/python3 cannot import zmq and msgpack"
  have_cc || fail "gcc cannot build a program"
  have_redis || fail "there is no redis-server"
  have_fio || fail "there is no fio"
  # The S3 server of the tests: built once per user, of the version that the tests pin.
  local s3
  s3=$(go run ./internal/tier/testserver/gateway/install) || fail "versitygw cannot be built"
  echo "S3 server: $s3"
  go version
  /usr/bin/python3 -c 'import sys, zmq; print("python", sys.version.split()[0], "pyzmq", zmq.pyzmq_version(), "libzmq", zmq.zmq_version())'
}

install() {
  local advice="install them: apt-get install --no-install-recommends $*"
  command -v apt-get >/dev/null || fail "missing: $*. There is no apt-get here; install what these packages of Debian hold"
  local as=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null && sudo -n true 2>/dev/null || fail "missing: $*. $advice"
    as=(sudo -n)
  fi
  echo "installing: $*"
  "${as[@]}" apt-get update -qq || fail "apt-get update failed; $advice"
  "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >"$scratch/apt.log" 2>&1 ||
    { tail -n 20 "$scratch/apt.log" >&2; fail "apt-get failed; $advice"; }
}

# --- build and static analysis ----------------------------------------------------------

build() {
  # The revision goes into the binary, unless git does not trust this folder's owner.
  local stamp=auto
  git rev-parse HEAD >/dev/null 2>&1 || stamp=false
  CGO_ENABLED=0 go build -buildvcs="$stamp" -trimpath -o bin/holdfast ./cmd/holdfast
  # A static ELF file asks for no interpreter.
  if readelf -l bin/holdfast | grep -q INTERP; then
    fail "bin/holdfast is not static"
  fi
  ls -l bin/holdfast | awk '{print "bin/holdfast:", $5, "bytes, static"}'
  bin/holdfast version
}

format() {
  local bad
  bad=$(gofmt -l .)
  [ -z "$bad" ] || fail "gofmt would change: $bad"
}

vet() {
  go vet ./...
  go vet -tags sabotage ./...
  go vet -tags invariants ./...
  go vet -tags killpoint ./...
  go vet -tags killpoint,sabotage ./internal/crashtest
}

lint() {
  go tool staticcheck ./...
  go tool staticcheck -tags killpoint ./internal/crashtest
}

# --- tests ------------------------------------------------------------------------------

race() { CGO_ENABLED=1 go test -race -timeout 900s ./...; }
sabotage() { go test -tags sabotage -timeout 900s ./...; }
invariants() { go test -tags invariants -timeout 900s ./...; }

# Real servers are killed at every point and at random moments, while engines work. Nothing
# else that starts servers runs meanwhile: a server that starts clears away dead ones' pools.
crashes() {
  local rounds=${HOLDFAST_CRASH_ROUNDS:-500}
  HOLDFAST_CRASH_ROUNDS=$rounds go test -v -count=1 -timeout "$((900 + 2 * rounds))s" -tags killpoint ./internal/crashtest
  go test -count=1 -timeout 900s -tags killpoint,sabotage ./internal/crashtest
}

# Every fuzz target, a minute or two together. Inputs are counted: when a time is over while a
# busy machine runs an input, go test fails with "context deadline exceeded" and has found nothing.
fuzz() {
  local targets=() dir name inputs=20000
  while read -r dir; do
    while read -r name; do
      targets+=("$dir $name")
    done < <(go test -list '^Fuzz' "$dir" | grep '^Fuzz')
  done < <(grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -n1 dirname | sort -u)
  [ ${#targets[@]} -gt 0 ] || fail "no fuzz target was found"
  echo "${#targets[@]} targets, $inputs inputs each"
  for target in "${targets[@]}"; do
    read -r dir name <<<"$target"
    timeout 600 go test -run '^$' -fuzz "^$name\$" -fuzztime "${inputs}x" -fuzzminimizetime 20x "$dir"
  done
}

# --- the program ------------------------------------------------------------------------

replay() {
  local trace=${HOLDFAST_TRACE:-../shared/data/conversation_trace.jsonl}
  if [ -e "$trace" ]; then
    echo "trace: $trace"
    bin/holdfast replay --requests 1000 "$trace"
  elif [ -n "${HOLDFAST_TRACE:-}" ]; then
    fail "HOLDFAST_TRACE=$HOLDFAST_TRACE does not exist"
  else
    echo "no recorded trace at $trace: replaying a generated one of the same shape (set HOLDFAST_TRACE to use your own)"
    bin/holdfast replay --requests 1000 --generated
  fi
}

demo() { bin/holdfast demo; }

simulate() { bin/holdfast simulate --seeds 300; }

# Every claim of the connector, and the experiment that shows what the producer wait is for.
qualify() {
  bin/holdfast qualify
  bin/holdfast qualify --store server
  go run -tags sabotage ./cmd/holdfast qualify --row stale-saves
}

# get PATH: the status line of an HTTP GET at the admin address.
get() {
  local host=${admin%:*} port=${admin##*:} line
  exec 3<>"/dev/tcp/$host/$port"
  printf 'GET %s HTTP/1.0\r\nHost: %s\r\n\r\n' "$1" "$admin" >&3
  read -r line <&3
  exec 3<&-
  printf '%s\n' "${line%$'\r'}"
}

serve() {
  local out=$scratch/serve.out pool deadline=$((SECONDS + 120))
  bin/holdfast serve --port 0 --http-port 0 --socket "$scratch/holdfast.sock" --l1-size-gb 0.03 >"$out" 2>"$scratch/serve.err" &
  child=$!
  until grep -q 'vLLM' "$out"; do
    kill -0 "$child" 2>/dev/null || fail "serve ended early: $(cat "$scratch/serve.err")"
    [ "$SECONDS" -lt "$deadline" ] || fail "serve is not ready after 120 s"
    sleep 0.05
  done
  cat "$out"
  admin=$(sed -n 's#^ *admin *http://\([^/]*\)/.*#\1#p' "$out")
  pool=$(sed -n 's/^ *pool *\(lmcache_l1_pool_[^,]*\),.*/\1/p' "$out")
  [ -f "/dev/shm/$pool" ] || fail "the pool is not in /dev/shm"
  for path in / /healthcheck /status /metrics; do
    [ "$(get "$path")" = "HTTP/1.0 200 OK" ] || fail "GET $path: $(get "$path")"
  done
  kill -TERM "$child"
  wait "$child" || fail "serve ended with $? after SIGTERM: $(cat "$scratch/serve.err")"
  child=""
  [ ! -e "/dev/shm/$pool" ] || fail "the pool is still in /dev/shm"
  [ ! -e "$scratch/holdfast.sock" ] || fail "the socket is still there"
  echo "healthy; after SIGTERM the pool and the socket are gone"
}

step "prerequisites" prerequisites
step "gofmt" format
step "build" build
step "vet" vet
step "staticcheck" lint
step "tests with the race detector" race
step "tests that remove each safety" sabotage
step "tests with invariants" invariants
step "crashes" crashes
step "fuzz" fuzz
step "replay" replay
step "demo" demo
step "simulate" simulate
step "qualify" qualify
step "serve" serve

printf '\nall in %d s\n%d passed, 0 failed\n' "$SECONDS" "$passed"
