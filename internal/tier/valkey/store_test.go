package valkey

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/remote"
	"github.com/holdfast-kv/holdfast/internal/tier/testserver"
)

var bg = context.Background()

// What the tests of both stores on the network do.
var (
	object = testserver.Object
	put    = testserver.Put
	get    = testserver.Get
	exists = testserver.Exists
)

// TestOptions: what cannot work is refused with the setting's name and value.
func TestOptions(t *testing.T) {
	good := Options{Addresses: []string{"127.0.0.1:1"}}
	for want, change := range map[string]func(o *Options){
		"no address":                    func(o *Options) { o.Addresses = nil },
		`"here" is not host:port`:       func(o *Options) { o.Addresses = []string{"here"} },
		"not a cluster":                 func(o *Options) { o.Cluster, o.Sentinel = true, "m" },
		"database -1":                   func(o *Options) { o.DB = -1 },
		"database 3; a cluster":         func(o *Options) { o.Cluster, o.DB = true, 3 },
		"database 2; a cluster":         func(o *Options) { o.Addresses, o.DB = []string{"a:1", "b:1"}, 2 },
		`prefix "{x}:"`:                 func(o *Options) { o.Prefix = "{x}:" },
		"TTL of -1s":                    func(o *Options) { o.TTL = -time.Second },
		"TTL of 1µs":                    func(o *Options) { o.TTL = time.Microsecond },
		"timeout of 1ns":                func(o *Options) { o.Timeout = 1 },
		"-1 connections":                func(o *Options) { o.Connections = -1 },
		"no such file":                  func(o *Options) { o.TLS = &remote.TLS{CAFile: "/nowhere"} },
		"read the client's certificate": func(o *Options) { o.TLS = &remote.TLS{CertFile: "/nowhere"} },
	} {
		o := good
		change(&o)
		s, err := New(bg, o)
		if s != nil || !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// TestServerAway: the store opens, says that and why it fails, and works by itself as soon as
// there is a server.
func TestServerAway(t *testing.T) {
	server := testserver.Redis(t)
	server.Kill()
	s := open(t, Options{Addresses: addresses(server)})
	o := object(1, 100)
	if err := get(t, s, o); !tier.IsPassing(err) {
		t.Errorf("get: %v", err)
	}
	if status := s.Status(); status.State != tier.StateFailing || !strings.Contains(status.Reason, "refused") || status.Where != server.Addr {
		t.Errorf("%+v", status)
	}
	server.Start()
	testserver.Await(t, "the store's state", func() bool { return s.Status().State == tier.StateOK })
	put(t, s, o)
	if err := get(t, s, o); err != nil {
		t.Error(err)
	}
}

// TestRefused: wrong credentials and a database that does not exist are errors at once, and no
// secret is told to anybody.
func TestRefused(t *testing.T) {
	server := testserver.Redis(t, "--requirepass", "right-secret")
	var log bytes.Buffer
	o := Options{Addresses: addresses(server), Password: "wrong-secret", Log: slog.New(slog.NewTextHandler(&log, nil))}
	_, err := New(bg, o)
	if !errors.Is(err, remote.ErrRefused) {
		t.Errorf("wrong password: %v", err)
	}
	o.Password = ""
	if _, err := New(bg, o); !errors.Is(err, remote.ErrRefused) {
		t.Errorf("no password: %v", err)
	}
	o.Password = "right-secret"
	s := open(t, o)
	put(t, s, object(1, 10))
	told := fmt.Sprintf("%v %+v %s", err, s.Status(), &log)
	if strings.Contains(told, "-secret") {
		t.Errorf("a secret is told: %s", told)
	}
	o.DB = 99
	if _, err := New(bg, o); !errors.Is(err, remote.ErrRefused) {
		t.Errorf("database 99: %v", err)
	}
	o.DB, o.Cluster = 0, true
	if _, err := New(bg, o); !errors.Is(err, ErrOptions) && !errors.Is(err, remote.ErrRefused) {
		t.Errorf("a single server taken for a cluster: %v", err)
	}
}

// TestDatabases: a store sees its own database only.
func TestDatabases(t *testing.T) {
	server := testserver.Redis(t)
	one, two := open(t, Options{Addresses: addresses(server), DB: 1}), open(t, Options{Addresses: addresses(server), DB: 2})
	o := object(1, 100)
	put(t, one, o)
	if !exists(t, one, o) || exists(t, two, o) {
		t.Error("databases are mixed up")
	}
}

// TestTLSAuthority: a server that the authorities do not know is not spoken to.
func TestTLSAuthority(t *testing.T) {
	server := testserver.RedisTLS(t, testserver.NewCertificate(t), "secret")
	other := testserver.NewCertificate(t)
	o := Options{Addresses: addresses(server), Password: "secret", TLS: &remote.TLS{CAFile: other.CertFile}}
	s := open(t, o)
	if err := get(t, s, object(1, 10)); err == nil || errors.Is(err, tier.ErrAbsent) || !strings.Contains(s.Status().Reason, "certificate") {
		t.Errorf("unknown authority: %v, %+v", err, s.Status())
	}
	o.TLS = &remote.TLS{Insecure: true}
	put(t, open(t, o), object(1, 10))
}

// TestLimits: an object that no server takes is refused here, and alone.
func TestLimits(t *testing.T) {
	s := open(t, Options{Addresses: addresses(testserver.Redis(t))})
	big, small := object(1, 1), object(2, 10)
	big.Mem = make([]byte, MaxObjectBytes+1) // never touched
	errs := s.Put(bg, []tier.Object{big, small})
	if errs[0] == nil || tier.IsPassing(errs[0]) || errs[1] != nil {
		t.Error(errs)
	}
	if status := s.Status(); status.State != tier.StateOK {
		t.Errorf("%+v", status)
	}
}

// TestForeignValues: what another program left under a key is corrupt, is removed, and costs no
// memory, however big it is.
func TestForeignValues(t *testing.T) {
	server := testserver.Redis(t)
	s := open(t, Options{Addresses: addresses(server)})
	for what, set := range map[string][]string{
		"a list":        {"RPUSH", "", "x"},
		"a hash":        {"HSET", "", "h", "x"},
		"text":          {"SET", "", "hello"},
		"nothing":       {"SET", "", ""},
		"a number":      {"SET", "", "42"},
		"100 megabytes": {"SETRANGE", "", "100000000", "x"},
	} {
		o := object(7, 1000)
		set[1] = s.name(o.Key)
		server.Do(set...)
		if entries, _, err := s.List(bg, "", 10); err != nil || len(entries) != 0 {
			t.Errorf("%s: is listed: %v, %v", what, entries, err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := get(t, s, o)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, tier.ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 2<<20 {
			t.Errorf("%s: %d bytes were allocated", what, grown)
		}
		if err := get(t, s, o); !errors.Is(err, tier.ErrAbsent) {
			t.Errorf("%s: the second time: %v", what, err)
		}
		put(t, s, o)
		if err := get(t, s, o); err != nil {
			t.Errorf("%s: after a put: %v", what, err)
		}
		server.Do("FLUSHALL")
	}
}

// TestEviction: what the server drops to stay within its memory is a miss.
func TestEviction(t *testing.T) {
	server := testserver.Redis(t, "--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru")
	s := open(t, Options{Addresses: addresses(server)})
	there := 0
	for i := range 20 {
		put(t, s, object(i, 1<<20))
	}
	for i := range 20 {
		switch err := get(t, s, object(i, 1<<20)); {
		case err == nil:
			there++
		case !errors.Is(err, tier.ErrAbsent):
			t.Errorf("object %d: %v", i, err)
		}
	}
	if there == 0 || there == 20 {
		t.Errorf("%d of 20 objects are left", there)
	}
}

// TestTTL: every key gets the TTL with its value, and anew when it is read, if asked.
func TestTTL(t *testing.T) {
	server := testserver.Redis(t)
	ttl := func(o tier.Object) time.Duration {
		ms, err := strconv.Atoi(server.Do("PTTL", DefaultPrefix+o.Key.String()))
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(ms) * time.Millisecond
	}
	keep := open(t, Options{Addresses: addresses(server)})
	drop := open(t, Options{Addresses: addresses(server), TTL: time.Hour})
	again := open(t, Options{Addresses: addresses(server), TTL: 2 * time.Hour, Refresh: true})
	a, b := object(1, 100), object(2, 100)
	put(t, keep, a)
	put(t, drop, a, b)
	if ttl(a) != -time.Millisecond {
		t.Errorf("without TTL it is %s", ttl(a))
	}
	if d := ttl(b); d <= 0 || d > time.Hour {
		t.Errorf("the TTL is %s", d)
	}
	if err := get(t, drop, b); err != nil || ttl(b) > time.Hour {
		t.Errorf("a read without refresh: %v, TTL %s", err, ttl(b))
	}
	if err := get(t, again, b); err != nil || ttl(b) <= time.Hour {
		t.Errorf("a read with refresh: %v, TTL %s", err, ttl(b))
	}
}

// TestCutLeavesNoKeyWithoutTTL: wherever a put is cut, what is left has its TTL and is whole.
func TestCutLeavesNoKeyWithoutTTL(t *testing.T) {
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	s := open(t, Options{Addresses: []string{proxy.Addr}, TTL: time.Hour})
	direct := open(t, Options{Addresses: addresses(server)})
	for after := int64(1); after < 4000; after += 97 {
		restore := proxy.CutAfter(after)
		objs := []tier.Object{object(int(after), 1500), object(int(after)+1, 1500)}
		s.Put(bg, objs)
		restore()
		for _, o := range objs {
			if err := get(t, direct, o); err != nil && !errors.Is(err, tier.ErrAbsent) {
				t.Errorf("cut after %d bytes: %v", after, err)
			}
			if ttl := server.Do("PTTL", s.name(o.Key)); ttl == "-1" {
				t.Errorf("cut after %d bytes: a key without TTL", after)
			}
		}
	}
}

// TestEndOfContextInterrupts: a call returns when its context ends, not when the server or
// the timeout lets it, and later calls work.
func TestEndOfContextInterrupts(t *testing.T) {
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	s := open(t, Options{Addresses: []string{proxy.Addr}, Timeout: time.Hour, Connections: 1})
	testserver.Interrupt(t, s, proxy, 100_000, testserver.Rule{Down: testserver.None}, testserver.Rule{Down: 3}, testserver.Rule{Down: 200})
	if status := s.Status(); status.State != tier.StateOK {
		t.Errorf("%+v", status)
	}
}

// TestTimeout: a server that does not answer is a passing error after the timeout, and the
// deadline of the store is not taken for the caller's.
func TestTimeout(t *testing.T) {
	server := testserver.Redis(t)
	s := open(t, Options{Addresses: addresses(server), Timeout: 50 * time.Millisecond})
	o := object(1, 1000)
	testserver.Await(t, "the first put", func() bool { return s.Put(bg, []tier.Object{o})[0] == nil })
	server.Stop()
	err := get(t, s, o)
	if !tier.IsPassing(err) || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "50ms") {
		t.Errorf("%v", err)
	}
	if status := s.Status(); status.State != tier.StateFailing || status.Reason == "" {
		t.Errorf("%+v", status)
	}
	server.Continue()
	testserver.Await(t, "recovering", func() bool { return get(t, s, o) == nil && s.Status().State == tier.StateOK })
}

// TestReadOnly: a server that has become a replica refuses for now.
func TestReadOnly(t *testing.T) {
	server := testserver.Redis(t)
	s := open(t, Options{Addresses: addresses(server)})
	server.Do("REPLICAOF", "127.0.0.1", "1")
	if err := s.Put(bg, []tier.Object{object(1, 10)})[0]; !tier.IsPassing(err) {
		t.Error(err)
	}
	server.Do("REPLICAOF", "NO", "ONE")
	put(t, s, object(1, 10))
}

// TestKillWhileWorking: the server is killed and started again under readers and writers;
// nobody ever gets wrong bytes, and all go on by themselves.
func TestKillWhileWorking(t *testing.T) {
	server := testserver.Redis(t)
	testserver.KillWhileWorking(t, open(t, Options{Addresses: addresses(server)}), server, 4, 4)
}

// TestListAmongStrangers: pages are full and complete among many keys of others, some of which
// have a name of ours.
func TestListAmongStrangers(t *testing.T) {
	server := testserver.Redis(t)
	s := open(t, Options{Addresses: addresses(server), Prefix: `we*[ir]d\?`})
	var others []string
	for i := range 5000 {
		others = append(others, fmt.Sprint("other:", i), "x")
	}
	server.Do(append([]string{"MSET"}, others...)...)
	server.Do("SET", s.o.Prefix+"no key", "x")
	want := make(map[tier.Key]int64)
	for i := range 100 {
		o := object(i, 10+i)
		put(t, s, o)
		want[o.Key] = int64(len(o.Mem))
	}
	if got := testserver.ListAll(t, s, 7); !maps.Equal(got, want) {
		t.Errorf("%v are listed, want %v", got, want)
	}
}

func FuzzCursor(f *testing.F) {
	c := cursor{node: "h:1", scan: 5, rest: []tier.Entry{{Key: tier.Key{Rank: 3}, Length: 4}}}
	f.Add(c.String())
	f.Add("- ! ")
	f.Add("- .")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseCursor(text)
		if err != nil {
			if !errors.Is(err, ErrCursor) {
				t.Fatal(err)
			}
			return
		}
		again, err := parseCursor(c.String())
		if err != nil || again.String() != c.String() {
			t.Fatalf("%q became %q, then %q, %v", text, c.String(), again.String(), err)
		}
	})
}

// TestRights: the rights that docs/operations.md names are enough.
func TestRights(t *testing.T) {
	server := testserver.Redis(t)
	doc, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	rights := regexp.MustCompile("`(~holdfast:[^`]+)`").FindSubmatch(doc)
	if rights == nil {
		t.Fatal("the rights are not named")
	}
	server.Do(append([]string{"ACL", "SETUSER", "kv", "on", ">secret"}, strings.Fields(string(rights[1]))...)...)
	s := open(t, Options{Addresses: addresses(server), Username: "kv", Password: "secret", TTL: time.Hour, Refresh: true, DB: 1})
	o := object(1, 100)
	put(t, s, o)
	if err := get(t, s, o); err != nil || !exists(t, s, o) {
		t.Error(err)
	}
	if entries, _, err := s.List(bg, "", 10); err != nil || len(entries) != 1 {
		t.Errorf("%d entries, %v", len(entries), err)
	}
	if err := s.Delete(bg, []tier.Key{o.Key})[0]; err != nil {
		t.Error(err)
	}
	server.Do("ACL", "SETUSER", "kv", "-get", "-getex")
	put(t, s, o)
	if err := get(t, s, o); !errors.Is(err, remote.ErrRefused) || tier.IsPassing(err) {
		t.Errorf("without the right to read: %v", err)
	}
}
