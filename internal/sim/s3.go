package sim

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/xml"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/s3"
)

// bucket answers the requests of the project's own S3 store out of the objects of a tier. It is one of the poorer
// servers: where the connection breaks in the middle of an upload it makes visible what has come, unless a sum shows
// that something is missing. As with net/http, a request's body may be read for a while after its reply.
type bucket struct{ *tierStore }

const (
	bucketPath  = "/bucket/"
	objectsPath = bucketPath + s3.DefaultPrefix
	pieceBytes  = 64 // are read and written without others in between
)

// s3Tier is the project's own S3 store with a bucket that keeps the objects of a tier.
type s3Tier struct {
	*tierStore
	own *s3.Store
}

// newS3 puts the project's own store before a tier's objects.
func (s *sim) newS3(t *tierStore) tier.Store {
	// Calls hear of the virtual clock's deadlines alone, and never wait for a connection.
	own, err := s3.NewSimulated(s3.Options{
		Endpoint: "http://simulated", Bucket: strings.Trim(bucketPath, "/"), AccessKey: "key", SecretKey: "secret",
		Timeout: 24 * time.Hour, Connections: 1024,
	}, bucket{t})
	if err != nil {
		panic(err) // nothing of it is drawn
	}
	s.note("tier %d is an S3 bucket", t.n)
	return s3Tier{t, own}
}

// exchange is a call as the bucket knows it.
type exchange struct {
	*call
	objs   []tier.Object // of a put
	slots  []*slotUse    // their memory
	clears int           // carried out before it began
	read   map[tier.Key]*kept
	ended  bool
}

// exchangeKey is where a request's context has its exchange.
type exchangeKey struct{}

// context is that of the exchange's requests.
func (x *exchange) context() context.Context { return context.WithValue(x.ctx, exchangeKey{}, x) }

// begin begins a call that asks or deletes, and returns the context of its requests.
func (t s3Tier) begin(ctx context.Context, what string, objects int) context.Context {
	x := &exchange{call: t.tierStore.begin(ctx, what, objects)}
	return x.context()
}

// Put demands what that of other tiers does, and that nothing is read after it has ended.
func (t s3Tier) Put(ctx context.Context, objs []tier.Object) []error {
	clears := t.sim.tiers.clears
	slots, giveBack := t.lend(objs)
	x := &exchange{call: &call{tierStore: t.tierStore, ctx: ctx}, objs: objs, slots: slots, clears: clears}
	defer func() {
		x.ended = true
		giveBack()
	}()
	x.begin("put", len(objs))
	return t.own.Put(x.context(), objs)
}

// Get demands what that of other tiers does.
func (t s3Tier) Get(ctx context.Context, targets []tier.Target) []error {
	s, clears := t.sim, t.sim.tiers.clears
	x := &exchange{call: &call{tierStore: t.tierStore, ctx: ctx}, read: make(map[tier.Key]*kept)}
	slots, giveBack := x.fill(targets)
	defer giveBack()
	x.begin("get", len(targets))
	errs := t.own.Get(x.context(), targets)
	for i, u := range slots {
		if errs[i] != nil {
			continue
		}
		k := x.read[targets[i].Key]
		if ctx.Err() == nil && k.clear < clears {
			s.violate("cleared", "tier %d: an object is loaded that was put before a clear", t.n)
		}
		s.tiers.fetched++
		s.tiers.s3[1]++
		of := s.tiers.model[k.key]
		u.prefixes, u.from, u.rank = of.prefixes, of.from, of.rank
	}
	s.cache.Halt()
	return errs
}

// Exists implements tier.Store.
func (t s3Tier) Exists(ctx context.Context, keys []tier.Key) ([]bool, error) {
	return t.own.Exists(t.begin(ctx, "question", len(keys)), keys)
}

// Delete implements tier.Store.
func (t s3Tier) Delete(ctx context.Context, keys []tier.Key) []error {
	return t.own.Delete(t.begin(ctx, "deletion", len(keys)), keys)
}

// List implements tier.Store.
func (t s3Tier) List(ctx context.Context, cursor string, limit int) (entries []tier.Entry, next string, err error) {
	return t.own.List(t.begin(ctx, "list", limit), cursor, limit)
}

// broken is call.err as a transport says it: now and then the connection is reset.
func (c *call) broken() error {
	err := c.err()
	if errors.Is(err, errInjected) && c.sim.choices.IntN(2) == 1 {
		return fmt.Errorf("%w: %w", err, syscall.ECONNRESET)
	}
	return err
}

// RoundTrip implements http.RoundTripper.
func (b bucket) RoundTrip(r *http.Request) (*http.Response, error) {
	x, _ := r.Context().Value(exchangeKey{}).(*exchange)
	b.sim.cache.Halt()
	switch err := x.broken(); {
	case errors.Is(err, errInjected) && b.sim.choices.IntN(2) == 1:
		return refusal(r, http.StatusServiceUnavailable, "SlowDown"), nil
	case err != nil:
		return nil, err
	}
	name, isObject := strings.CutPrefix(r.URL.Path, objectsPath)
	switch {
	case r.Method == http.MethodPost:
		return b.delete(x, r)
	case !isObject:
		return b.page(r), nil
	}
	key, err := tier.ParseKey(name)
	if err != nil {
		b.sim.violate("request", "tier %d: %s %s: %v", b.n, r.Method, r.URL.Path, err)
	}
	if r.Method == http.MethodPut {
		return b.put(x, r, key)
	}
	k := b.index[key]
	if k == nil {
		return refusal(r, http.StatusNotFound, "NoSuchKey"), nil
	}
	w := reply(r, http.StatusOK, nil)
	w.ContentLength = int64(len(k.raw))
	w.Header.Set("Content-Length", strconv.Itoa(len(k.raw)))
	if r.Method == http.MethodGet {
		x.read[key] = k
		w.Body = io.NopCloser(&download{x, k.raw})
	}
	return w, nil
}

// put takes an upload, piece by piece.
func (b bucket) put(x *exchange, r *http.Request, key tier.Key) (*http.Response, error) {
	if b.index[key] != nil { // no need to read it all
		b.readOn(x, r.Body)
		return refusal(r, http.StatusPreconditionFailed, "PreconditionFailed"), nil
	}
	raw := make([]byte, r.ContentLength)
	for at := 0; at < len(raw); {
		n, err := io.ReadFull(r.Body, raw[at:][:min(pieceBytes, len(raw)-at)])
		if at += n; err == nil {
			x.half()
			err = x.broken()
		}
		if err != nil {
			b.sim.note("tier %d: an upload ends after %d of %d bytes: %v", b.n, at, len(raw), err)
			b.receive(x, r, key, raw[:at])
			b.readOn(x, r.Body)
			return nil, err
		}
	}
	w := b.receive(x, r, key, raw)
	x.half()
	if err := x.broken(); err != nil {
		return nil, err // what is visible stays so
	}
	return w, nil
}

// receive makes an upload visible as far as it has come, and demands that this is all of it and as it was committed.
func (b bucket) receive(x *exchange, r *http.Request, key tier.Key, raw []byte) *http.Response {
	sum := binary.BigEndian.AppendUint32(nil, crc32.Checksum(raw, crc32.MakeTable(crc32.Castagnoli)))
	switch want := r.Header.Get("X-Amz-Checksum-Crc32c"); {
	case want != "" && want != base64.StdEncoding.EncodeToString(sum):
		return refusal(r, http.StatusBadRequest, "BadDigest")
	case b.index[key] != nil: // another put was faster
		return refusal(r, http.StatusPreconditionFailed, "PreconditionFailed")
	}
	i := slices.IndexFunc(x.objs, func(o tier.Object) bool { return o.Key == key })
	if i < 0 {
		b.sim.violate("request", "tier %d: an object is uploaded that was not put", b.n)
	}
	o, u := &x.objs[i], x.slots[i]
	if whole := tier.HeaderBytes + len(o.Mem); len(raw) != whole {
		b.sim.violate("wrong bytes", "tier %d: of an upload of %d bytes %d become visible", b.n, whole, len(raw))
	}
	var header [tier.HeaderBytes]byte
	h := tier.Header{Key: key, Length: int64(len(o.Mem)), Sum: o.Sum}
	h.Encode(header[:])
	if !bytes.Equal(raw[:tier.HeaderBytes], header[:]) {
		b.sim.violate("wrong bytes", "tier %d: an object is uploaded with another's header", b.n)
	}
	if !u.spoiled {
		b.sim.checkPut(o, u, raw[tier.HeaderBytes:])
	}
	b.sim.tiers.s3[0]++
	b.keep(&kept{key: key, raw: raw, clear: x.clears})
	return reply(r, http.StatusOK, nil)
}

// readOn goes on reading the body of a request that has its reply, now and then, and demands that what it gets is not
// of a put that has ended.
func (b bucket) readOn(x *exchange, body io.Reader) {
	s := b.sim
	if s.choices.IntN(2) == 0 {
		return
	}
	s.cache.Start(func() {
		var piece [pieceBytes]byte
		for {
			for range 1 + s.choices.IntN(4) {
				s.cache.Halt()
			}
			n, err := body.Read(piece[:])
			if n > 0 && x.ended {
				s.violate("slot in use", "tier %d: an upload goes on reading after its put has ended", b.n)
			}
			if err != nil {
				return
			}
		}
	})
}

// download is the body of a reply.
type download struct {
	x   *exchange
	raw []byte
}

func (d *download) Read(p []byte) (int, error) {
	if len(d.raw) == 0 {
		return 0, io.EOF
	}
	d.x.half()
	if err := d.x.broken(); err != nil {
		return 0, err
	}
	n := copy(p, d.raw[:min(pieceBytes, len(d.raw))])
	d.raw = d.raw[n:]
	return n, nil
}

// delete removes objects, and says which could not be.
func (b bucket) delete(x *exchange, r *http.Request) (*http.Response, error) {
	var asked struct {
		Object []struct{ Key string }
	}
	if err := xml.NewDecoder(r.Body).Decode(&asked); err != nil {
		b.sim.violate("request", "tier %d: a deletion cannot be read: %v", b.n, err)
	}
	type failure struct{ Key, Code string }
	var said struct {
		XMLName xml.Name `xml:"DeleteResult"`
		Error   []failure
	}
	for _, o := range asked.Object {
		switch err := x.err(); {
		case errors.Is(err, errInjected):
			said.Error = append(said.Error, failure{o.Key, "InternalError"})
			continue
		case err != nil:
			return nil, err
		}
		key, err := tier.ParseKey(strings.TrimPrefix(o.Key, s3.DefaultPrefix))
		if err != nil {
			b.sim.violate("request", "tier %d: deletion of %s: %v", b.n, o.Key, err)
		}
		if k := b.index[key]; k != nil {
			b.remove(k)
		}
		x.half()
	}
	return reply(r, http.StatusOK, said), nil
}

// page lists a few objects, by name.
func (b bucket) page(r *http.Request) *http.Response {
	type entry struct {
		Key          string
		Size         int
		LastModified string
	}
	var page struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string
		Contents              []entry
	}
	q := r.URL.Query()
	most, err := strconv.Atoi(q.Get("max-keys"))
	if err != nil || q.Get("prefix") != s3.DefaultPrefix {
		b.sim.violate("request", "tier %d: a list of %s", b.n, r.URL)
	}
	most = min(most, 4+b.sim.choices.IntN(60))
	objects := make(map[string]*kept, len(b.list))
	for _, k := range b.list {
		objects[s3.DefaultPrefix+k.key.String()] = k
	}
	after := max(q.Get("start-after"), q.Get("continuation-token"))
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		if name <= after {
			continue
		}
		if len(page.Contents) == most {
			page.IsTruncated, page.NextContinuationToken = true, page.Contents[most-1].Key
			break
		}
		page.Contents = append(page.Contents, entry{name, len(objects[name].raw), "2001-09-09T01:46:40Z"})
	}
	return reply(r, http.StatusOK, page)
}

// refusal is a reply that says why not.
func refusal(r *http.Request, status int, code string) *http.Response {
	return reply(r, status, struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
	}{Code: code})
}

// reply has a document as its body, or nothing.
func reply(r *http.Request, status int, document any) *http.Response {
	var body []byte
	if document != nil {
		body, _ = xml.Marshal(document) // of strings and numbers
	}
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Last-Modified": {"Sun, 09 Sep 2001 01:46:40 GMT"}, "Etag": {`"0"`}},
		Body:   io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}
}
