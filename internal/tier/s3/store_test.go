package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

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
)

// TestOptions: what cannot work is refused with the setting's name and value, and no secret.
func TestOptions(t *testing.T) {
	good := Options{Endpoint: "http://127.0.0.1:1", Bucket: "bucket"}
	for want, change := range map[string]func(o *Options){
		"the endpoint":                  func(o *Options) { o.Endpoint = "" },
		"endpoint is not http":          func(o *Options) { o.Endpoint = "ftp://127.0.0.1" },
		"endpoint is not http(s)":       func(o *Options) { o.Endpoint = "http://user:secret@127.0.0.1" },
		"is not http(s)://host[:port]":  func(o *Options) { o.Endpoint = "http://127.0.0.1/bucket" },
		`bucket ""`:                     func(o *Options) { o.Bucket = "" },
		`bucket "Not a bucket"`:         func(o *Options) { o.Bucket = "Not a bucket" },
		`prefix "/x"`:                   func(o *Options) { o.Prefix = "/x" },
		`prefix "a//b/../"`:             func(o *Options) { o.Prefix = "a//b/../" },
		`prefix "\xff"`:                 func(o *Options) { o.Prefix = "\xff" },
		"belong together":               func(o *Options) { o.AccessKey = "key" },
		"secret key belong":             func(o *Options) { o.SecretKey = "secret" },
		"parts of 1 bytes":              func(o *Options) { o.PartBytes = 1 },
		"timeout of 1ns":                func(o *Options) { o.Timeout = 1 },
		"2000 connections":              func(o *Options) { o.Connections = 2000 },
		"no such file":                  func(o *Options) { o.TLS.CAFile = "/nowhere" },
		"read the client's certificate": func(o *Options) { o.TLS.KeyFile = "/nowhere" },
	} {
		o := good
		change(&o)
		s, err := New(bg, o)
		if s != nil || !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "user:secret") {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// TestRefused: a bucket that does not exist and wrong keys are errors at once that say what to
// do, and no secret is told to anybody.
func TestRefused(t *testing.T) {
	server := testserver.S3(t, nil)
	var log bytes.Buffer
	o := options(server, server.Endpoint)
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	o.Bucket = "no-such-bucket"
	_, absent := New(bg, o)
	if !errors.Is(absent, remote.ErrRefused) || !strings.Contains(absent.Error(), `no bucket "no-such-bucket"; create it`) {
		t.Error(absent)
	}
	o.Bucket, o.SecretKey = server.Bucket, "wrong-secret"
	_, wrong := New(bg, o)
	if !errors.Is(wrong, remote.ErrRefused) {
		t.Error(wrong)
	}
	o.SecretKey = server.SecretKey
	s := open(t, o)
	put(t, s, object(1, 10))
	told := fmt.Sprintf("%v %v %+v %s", absent, wrong, s.Status(), &log)
	if strings.Contains(told, "wrong-secret") || strings.Contains(told, server.SecretKey) {
		t.Errorf("a secret is told: %s", told)
	}
	// The bucket goes while the store is open.
	if err := os.RemoveAll(filepath.Join(server.Data, server.Bucket)); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(bg, []tier.Object{object(2, 10)})[0]; !errors.Is(err, remote.ErrRefused) || tier.IsPassing(err) {
		t.Error(err)
	}
	if status := s.Status(); status.State != tier.StateFailing || !strings.Contains(status.Reason, "create it") {
		t.Errorf("%+v", status)
	}
}

// TestServerAway: the store opens, says that and why it fails, and works by itself as soon as
// there is a server.
func TestServerAway(t *testing.T) {
	server := testserver.S3(t, nil)
	server.Kill()
	s := open(t, options(server, server.Endpoint))
	if err := get(t, s, object(1, 100)); !tier.IsPassing(err) {
		t.Errorf("get: %v", err)
	}
	if status := s.Status(); status.State != tier.StateFailing || !strings.Contains(status.Reason, "refused") {
		t.Errorf("%+v", status)
	}
	server.Start()
	testserver.Await(t, "the store's state", func() bool { return s.Status().State == tier.StateOK })
	put(t, s, object(1, 100))
	if err := get(t, s, object(1, 100)); err != nil {
		t.Error(err)
	}
}

// TestCredentialsOfTheEnvironment: without keys in the settings they come from AWS's variables.
func TestCredentialsOfTheEnvironment(t *testing.T) {
	server := testserver.S3(t, nil)
	t.Setenv("AWS_ACCESS_KEY_ID", server.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", server.SecretKey)
	t.Setenv("AWS_SESSION_TOKEN", "") // another's, where these tests run
	o := options(server, server.Endpoint)
	o.AccessKey, o.SecretKey = "", ""
	put(t, open(t, o), object(1, 10))
}

// TestErrors: what the server says means the same to every call.
func TestErrors(t *testing.T) {
	server := testserver.S3(t, nil)
	proxy := testserver.NewHTTPProxy(t, server.Endpoint)
	s := open(t, options(server, proxy.URL))
	there := object(1, 5000)
	put(t, s, there)
	passing := func(err error) bool { return tier.IsPassing(err) }
	full := func(err error) bool { return errors.Is(err, tier.ErrFull) && !tier.IsPassing(err) }
	refused := func(err error) bool { return errors.Is(err, remote.ErrRefused) && !tier.IsPassing(err) }
	permanent := func(err error) bool {
		return err != nil && !tier.IsPassing(err) && !errors.Is(err, tier.ErrFull) && !errors.Is(err, remote.ErrRefused) && !errors.Is(err, tier.ErrAbsent)
	}
	for _, c := range []struct {
		status int
		code   string
		is     func(error) bool
		state  tier.State
	}{
		{503, "SlowDown", passing, tier.StateFailing},
		{503, "ServiceUnavailable", passing, tier.StateFailing},
		{500, "InternalError", passing, tier.StateFailing},
		{502, "BadGateway", passing, tier.StateFailing},
		{429, "TooManyRequests", passing, tier.StateFailing},
		{400, "RequestTimeout", passing, tier.StateFailing},
		{400, "ExpiredToken", passing, tier.StateFailing},
		{409, "ConditionalRequestConflict", passing, tier.StateFailing},
		{507, "InsufficientStorage", full, tier.StateFull},
		{403, "QuotaExceeded", full, tier.StateFull},
		{403, "AccessDenied", refused, tier.StateFailing},
		{403, "RequestTimeTooSkewed", refused, tier.StateFailing},
		{301, "PermanentRedirect", refused, tier.StateFailing},
		{404, "NoSuchBucket", refused, tier.StateFailing},
		{400, "InvalidArgument", permanent, tier.StateOK},
	} {
		proxy.Intercept(testserver.S3Error("", c.status, c.code))
		got := s.Get(bg, []tier.Target{{Key: there.Key, Mem: make([]byte, 5000)}})[0]
		_, listed := 0, error(nil)
		_, _, listed = s.List(bg, "", 1)
		deleted := s.Delete(bg, []tier.Key{there.Key})[0]
		said := s.Put(bg, []tier.Object{object(2, 5000)})[0]
		for call, err := range map[string]error{"put": said, "get": got, "delete": deleted, "list": listed} {
			if !c.is(err) {
				t.Errorf("%d %s: %s: %v", c.status, c.code, call, err)
			}
		}
		if status := s.Status(); status.State != c.state {
			t.Errorf("%d %s: state %q (%s)", c.status, c.code, status.State, status.Reason)
		}
		proxy.Intercept(nil)
		if err := get(t, s, there); err != nil {
			t.Fatalf("after %d %s: %v", c.status, c.code, err)
		}
		put(t, s, object(3, 10))
		if status := s.Status(); status.State != tier.StateOK {
			t.Errorf("after %d %s: state %q", c.status, c.code, status.State)
		}
	}
	// A request without a body in its answer has the status alone.
	for code, is := range map[int]func(error) bool{503: passing, 403: refused} {
		proxy.Intercept(testserver.S3Error(http.MethodHead, code, ""))
		if _, err := s.Exists(bg, []tier.Key{there.Key}); !is(err) {
			t.Errorf("%d: exists: %v", code, err)
		}
	}
}

// TestConditionalPut: what exists is kept by the server itself; a server that does not know
// how is spoken to without, once it has said so.
func TestConditionalPut(t *testing.T) {
	server := testserver.S3(t, nil)
	proxy := testserver.NewHTTPProxy(t, server.Endpoint)
	s := open(t, options(server, proxy.URL))
	o := object(1, 5000)
	put(t, s, o)
	other := object(2, 3000)
	other.Key = o.Key
	put(t, s, other)
	if err := get(t, s, o); err != nil {
		t.Error(err)
	}
	refusals := 0
	proxy.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("If-None-Match") == "" {
			return false
		}
		refusals++
		return testserver.S3Error("", 501, "NotImplemented")(w, r)
	})
	for i := range 3 {
		put(t, s, object(10+i, 100))
		if err := get(t, s, object(10+i, 100)); err != nil {
			t.Error(err)
		}
	}
	if refusals != 1 {
		t.Errorf("the server said %d times that it knows no conditions", refusals)
	}
}

// TestParts: a long object goes in parts, is whole when it is there, and leaves nothing behind
// when it fails, also of a process that died long ago.
func TestParts(t *testing.T) {
	server := testserver.S3(t, nil)
	proxy := testserver.NewHTTPProxy(t, server.Endpoint)
	o := options(server, proxy.URL)
	o.PartBytes = minPartBytes
	s := open(t, o)
	for n, size := range []int{minPartBytes - tier.HeaderBytes, minPartBytes - tier.HeaderBytes + 1, 2 * minPartBytes, 11_000_000} {
		long := object(n, size)
		put(t, s, long)
		put(t, s, long)
		if err := get(t, s, long); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	uploads := func() int {
		page, err := s.client.ListMultipartUploads(bg, server.Bucket, "", "", "", "", 100)
		if err != nil {
			t.Fatal(err)
		}
		return len(page.Uploads)
	}
	lost := object(9, 11_000_000)
	for _, number := range []string{"partNumber=1", "partNumber=3", "uploadId"} {
		proxy.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			return r.Method != http.MethodDelete && strings.Contains(r.URL.RawQuery, number) && testserver.S3Error("", 503, "SlowDown")(w, r)
		})
		if err := s.Put(bg, []tier.Object{lost})[0]; !tier.IsPassing(err) {
			t.Errorf("failing at %s: %v", number, err)
		}
		if n := uploads(); n != 0 {
			t.Errorf("failing at %s leaves %d uploads", number, n)
		}
		if err := get(t, s, lost); !errors.Is(err, tier.ErrAbsent) {
			t.Errorf("failing at %s: %v", number, err)
		}
	}
	// Now aborting fails as well: the next process does it, and leaves other programs' alone.
	proxy.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		return (r.Method == http.MethodDelete || strings.Contains(r.URL.RawQuery, "partNumber=2")) && testserver.S3Error("", 503, "SlowDown")(w, r)
	})
	if err := s.Put(bg, []tier.Object{lost})[0]; !tier.IsPassing(err) {
		t.Error(err)
	}
	proxy.Intercept(nil)
	for _, name := range []string{"theirs", s.o.Prefix + "theirs"} {
		if _, err := s.client.NewMultipartUpload(bg, server.Bucket, name, minio.PutObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := uploads(); n != 3 {
		t.Fatalf("%d uploads are open", n)
	}
	next := open(t, o)
	if n := uploads(); n != 3 {
		t.Errorf("uploads that may be in progress are aborted: %d are left", n)
	}
	next.abortAbandoned(bg, 0)
	if n := uploads(); n != 2 {
		t.Errorf("%d uploads are left, not the two of others", n)
	}
}

// TestEndOfContextInterrupts: a call returns when its context ends, not when the server or the
// timeout lets it.
func TestEndOfContextInterrupts(t *testing.T) {
	server := testserver.S3(t, nil)
	proxy := testserver.NewProxy(t, server.Addr)
	o := options(server, "http://"+proxy.Addr)
	o.Timeout, o.Connections = time.Hour, 1
	testserver.Interrupt(t, open(t, o), proxy, 500_000,
		testserver.Rule{Down: testserver.None}, testserver.Rule{Down: 100}, testserver.Rule{Down: 100_000},
		testserver.Rule{Up: 1000}, testserver.Rule{Up: 200_000})
}

// TestEndedContextBeginsNothing: whether a lane is free or not.
func TestEndedContextBeginsNothing(t *testing.T) {
	s, err := NewSimulated(Options{Endpoint: "http://nowhere", Bucket: "bucket", AccessKey: "a", SecretKey: "b"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(bg)
	cancel()
	for range 100 {
		if _, _, err := s.request(ctx, s.lanes); !errors.Is(err, context.Canceled) {
			t.Fatalf("a request begins: %v", err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestTimeout: a server that does not answer is a passing error after the timeout, and the
// deadline of the store is not taken for the caller's.
func TestTimeout(t *testing.T) {
	server := testserver.S3(t, nil)
	o := options(server, server.Endpoint)
	o.Timeout = 100 * time.Millisecond
	s := open(t, o)
	there := object(1, 1000)
	testserver.Await(t, "the first put", func() bool { return s.Put(bg, []tier.Object{there})[0] == nil })
	server.Stop()
	if err := get(t, s, there); !tier.IsPassing(err) || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "100ms") {
		t.Errorf("%v", err)
	}
	server.Continue()
	testserver.Await(t, "recovering", func() bool { return get(t, s, there) == nil })
}

// TestBodyEnds: after end a body gives nothing, also to a reader that has begun.
func TestBodyEnds(t *testing.T) {
	header, mem := []byte("header"), []byte("memory")
	for from := range int64(13) {
		for to := from; to <= 12; to++ {
			b, err := io.ReadAll(newBody(header, mem, from, to))
			if want := "headermemory"[from:min(to, 12)]; err != nil || string(b) != want {
				t.Fatalf("%d to %d: %q, %v; want %q", from, to, b, err, want)
			}
		}
	}
	if n := readAfterEnd(t); n != 0 {
		t.Errorf("%d bytes are read after the end", n)
	}
}

// readAfterEnd is how many bytes a reader that has begun gets after the end.
func readAfterEnd(t *testing.T) int {
	b := newBody([]byte("header"), []byte("memory"), 0, 12)
	var one [1]byte
	if n, err := b.Read(one[:]); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	b.end()
	n, _ := b.Read(one[:])
	return n
}

// TestCutUploadIsNotVisible: wherever an upload is cut, no part of the object can be seen.
func TestCutUploadIsNotVisible(t *testing.T) {
	if visible := cutUploads(t); visible != 0 {
		t.Errorf("%d uploads that were cut are visible", visible)
	}
}

// cutUploads cuts uploads at many places and counts those of which a part becomes visible. The
// server sees the end of a connection after the client does, so it is asked until it is idle.
func cutUploads(t *testing.T) (visible int) {
	server := testserver.S3(t, nil)
	proxy := testserver.NewProxy(t, server.Addr)
	o := options(server, "http://"+proxy.Addr)
	o.Connections = 1
	s, direct := open(t, o), open(t, options(server, server.Endpoint))
	for i, after := range []int64{600, 1000, 5000, 20_000, 40_000, 60_000} {
		o := object(i, 60_000)
		proxy.Set(testserver.Rule{Up: after, Cut: true})
		err := s.Put(bg, []tier.Object{o})[0]
		proxy.Set(testserver.Rule{})
		if err == nil {
			t.Fatalf("a put that is cut after %d bytes succeeds", after)
		}
		server.AwaitIdle()
		if err := get(t, direct, o); !errors.Is(err, tier.ErrAbsent) {
			visible++
		}
	}
	return visible
}

// TestKillWhileWorking: the server is killed and started again under readers and writers;
// nobody ever gets wrong bytes, and all go on by themselves.
func TestKillWhileWorking(t *testing.T) {
	server := testserver.S3(t, nil)
	testserver.KillWhileWorking(t, open(t, options(server, server.Endpoint)), server, 3, 3)
}

// TestListAmongStrangers: other programs' objects below the prefix are neither listed nor in
// the way.
func TestListAmongStrangers(t *testing.T) {
	server := testserver.S3(t, nil)
	s := open(t, options(server, server.Endpoint))
	for i := range 30 {
		name := fmt.Sprintf("%s%02d/stranger %d", s.o.Prefix, i, i)
		if _, err := s.client.PutObject(bg, server.Bucket, name, strings.NewReader("x"), 1, "", "", minio.PutObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	want := map[tier.Key]int64{}
	for i := range 25 {
		o := object(i, 10+i)
		o.Key.Space[0] = byte(10 * i)
		put(t, s, o)
		want[o.Key] = int64(len(o.Mem))
	}
	if got := testserver.ListAll(t, s, 4); !maps.Equal(got, want) {
		t.Errorf("%v are listed, want %v", got, want)
	}
}
