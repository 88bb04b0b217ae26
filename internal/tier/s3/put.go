package s3

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/http"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/remote"
)

// maxParts is how many parts an object may have.
const maxParts = 10_000

// Put stores the objects that the bucket does not have.
func (s *Store) Put(ctx context.Context, objs []tier.Object) []error {
	if err := s.enter(ctx, "put"); err != nil {
		return tier.All(len(objs), err)
	}
	defer s.open.Leave()
	keys := make([]tier.Key, len(objs))
	for i := range objs {
		keys[i] = objs[i].Key
	}
	most := min(s.o.PartBytes*maxParts-tier.HeaderBytes, 5<<40)
	firsts := remote.Firsts(keys)
	errs := s.each(len(objs), func(i int) error {
		switch n := int64(len(objs[i].Mem)); {
		case n < 1 || n > most:
			return fmt.Errorf("s3: put an object of %d bytes; 1 to %d are possible", n, most)
		case firsts[i] != i:
			return nil
		}
		return s.put(ctx, &objs[i])
	})
	for i, first := range firsts {
		if first != i && errs[i] == nil {
			errs[i] = errs[first]
		}
	}
	s.health.NotePut(errs...)
	return errs
}

// each does something for n objects, as many at once as there are connections.
func (s *Store) each(n int, do func(i int) error) []error {
	errs := make([]error, n)
	if s.inline {
		for i := range errs {
			errs[i] = do(i)
		}
		return errs
	}
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(n, s.o.Connections) {
		workers.Go(func() {
			for i := range next {
				errs[i] = do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	workers.Wait()
	return errs
}

func (s *Store) put(ctx context.Context, o *tier.Object) error {
	var header [tier.HeaderBytes]byte
	h := tier.Header{Key: o.Key, Length: int64(len(o.Mem)), Sum: o.Sum}
	h.Encode(header[:])
	upload := s.putWhole
	if int64(len(o.Mem))+tier.HeaderBytes > s.o.PartBytes {
		upload = s.putParts
	}
	err := upload(ctx, s.name(o.Key), header[:], o.Mem, s.putOptions())
	if status(err) == http.StatusNotImplemented && !s.unconditional.Swap(true) {
		s.o.Log.Info("the server does not know conditional puts; what exists may be written again")
		err = upload(ctx, s.name(o.Key), header[:], o.Mem, s.putOptions())
	}
	switch {
	case err == nil:
		return nil
	case status(err) == http.StatusPreconditionFailed: // it is there already
		return nil
	case isCut(err):
		// A server that refuses what is there already may close the connection on the rest
		// of the body, and its answer is lost with it.
		if there, _ := s.stat(ctx, s.name(o.Key)); there {
			return nil
		}
	}
	return s.failure(ctx, "put "+o.Key.String(), err)
}

func (s *Store) putOptions() (o minio.PutObjectOptions) {
	o.ContentType = "application/octet-stream"
	o.StorageClass = s.o.StorageClass
	o.DisableContentSha256 = true // for a tenth of the time there are sums of other kinds
	if !s.unconditional.Load() {
		o.SetMatchETagExcept("*")
	}
	return o
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// putWhole makes one request.
func (s *Store) putWhole(ctx context.Context, name string, header, mem []byte, o minio.PutObjectOptions) error {
	bounded, end, err := s.request(ctx, s.lanes)
	if err != nil {
		return err
	}
	defer end()
	size := int64(len(header) + len(mem))
	from := newBody(header, mem, 0, size)
	defer from.end()
	// With a sum the server refuses what is cut on the way. Without, some make half an object
	// visible: versitygw 1.8.0 does, for one.
	if !sabotage.On(sabotage.UploadWithoutSum) {
		sum := crc32.Update(crc32.Checksum(header, castagnoli), castagnoli, mem)
		o.UserMetadata = map[string]string{"X-Amz-Checksum-Crc32c": base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))}
	}
	_, err = s.client.PutObject(bounded, s.o.Bucket, name, from, size, "", "", o)
	return err
}

// putParts makes an upload of several requests. It is visible when it is completed, and is
// aborted otherwise.
func (s *Store) putParts(ctx context.Context, name string, header, mem []byte, o minio.PutObjectOptions) (err error) {
	if there, err := s.stat(ctx, name); there || err != nil {
		return err // the parts of what exists would be sent for nothing
	}
	var id string
	err = s.short(ctx, func(ctx context.Context) (err error) {
		id, err = s.client.NewMultipartUpload(ctx, s.o.Bucket, name, minio.PutObjectOptions{ContentType: o.ContentType, StorageClass: o.StorageClass})
		return err
	})
	if err != nil {
		return err
	}
	completed := false
	defer func() {
		if !completed {
			s.abort(name, id)
		}
	}()
	size := int64(len(header) + len(mem))
	var parts []minio.CompletePart
	for from := int64(0); from < size; from += s.o.PartBytes {
		part, err := s.putPart(ctx, name, id, len(parts)+1, newBody(header, mem, from, min(size, from+s.o.PartBytes)), min(s.o.PartBytes, size-from))
		if err != nil {
			return err
		}
		parts = append(parts, minio.CompletePart{PartNumber: part.PartNumber, ETag: part.ETag})
	}
	err = s.short(ctx, func(ctx context.Context) error {
		_, err := s.client.CompleteMultipartUpload(ctx, s.o.Bucket, name, id, parts, o)
		return err
	})
	completed = err == nil
	return err
}

func (s *Store) putPart(ctx context.Context, name, id string, number int, from *body, size int64) (minio.ObjectPart, error) {
	bounded, end, err := s.request(ctx, s.lanes)
	if err != nil {
		return minio.ObjectPart{}, err
	}
	defer end()
	defer from.end()
	// MD5 is the one sum of a part that every server takes.
	return s.client.PutObjectPart(bounded, s.o.Bucket, name, id, number, from, size, minio.PutObjectPartOptions{
		DisableContentSha256: true, Md5Base64: from.md5(),
	})
}

// short makes a short request.
func (s *Store) short(ctx context.Context, do func(ctx context.Context) error) error {
	bounded, end, err := s.request(ctx, s.asides)
	if err != nil {
		return err
	}
	defer end()
	return do(bounded)
}

const (
	// abortTimeout bounds the wish to abort, which outlives the put's context.
	abortTimeout = 2 * time.Second
	// abandonedAfter is the age of uploads that nobody is going to complete.
	abandonedAfter = 24 * time.Hour
)

func (s *Store) abort(name, id string) {
	ctx, cancel := context.WithTimeout(context.Background(), min(abortTimeout, s.o.Timeout))
	defer cancel()
	if err := s.client.AbortMultipartUpload(ctx, s.o.Bucket, name, id); err != nil && status(err) != http.StatusNotFound {
		s.o.Log.Warn("an upload could not be aborted; its parts take space for a day", "object", name, "error", s.failure(ctx, "abort", err))
	}
}

// abortAbandoned aborts uploads below the prefix that are older than age: their processes have
// died, or could not abort.
func (s *Store) abortAbandoned(ctx context.Context, age time.Duration) {
	keyMarker, idMarker, aborted := "", "", 0
	for {
		var page minio.ListMultipartUploadsResult
		err := s.short(ctx, func(ctx context.Context) (err error) {
			page, err = s.client.ListMultipartUploads(ctx, s.o.Bucket, s.o.Prefix, keyMarker, idMarker, "", 1000)
			return err
		})
		if err != nil {
			s.o.Log.Info("abandoned uploads cannot be listed", "error", s.failure(ctx, "list uploads", err))
			return
		}
		for _, upload := range page.Uploads {
			if _, ours := s.key(upload.Key); ours && time.Since(upload.Initiated) >= age {
				s.abort(upload.Key, upload.UploadID)
				aborted++
			}
		}
		again := page.NextKeyMarker == keyMarker && page.NextUploadIDMarker == idMarker
		if keyMarker, idMarker = page.NextKeyMarker, page.NextUploadIDMarker; !page.IsTruncated || again || ctx.Err() != nil {
			break
		}
	}
	if aborted > 0 {
		s.o.Log.Info("abandoned uploads are aborted", "uploads", aborted)
	}
}
