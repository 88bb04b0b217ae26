package s3

import (
	"crypto/md5"
	"encoding/base64"
	"errors"
	"io"
	"sync"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

// body gives pieces of memory to net/http, whose goroutines may go on reading for a moment
// after a request has ended; after end they get nothing more.
type body struct {
	mu     sync.Mutex
	pieces [][]byte
	ended  bool
}

var errEnded = errors.New("the request has ended")

// newBody is the bytes from up to to of header and mem, one behind the other.
func newBody(header, mem []byte, from, to int64) *body {
	b := &body{}
	for _, piece := range [][]byte{header, mem} {
		n := int64(len(piece))
		if low, high := max(from, 0), min(to, n); low < high {
			b.pieces = append(b.pieces, piece[low:high])
		}
		from, to = from-n, to-n
	}
	return b
}

// Read copies under the lock, so that end waits for it.
func (b *body) Read(p []byte) (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return 0, errEnded
	}
	for n < len(p) && len(b.pieces) > 0 {
		k := copy(p[n:], b.pieces[0])
		n += k
		if b.pieces[0] = b.pieces[0][k:]; len(b.pieces[0]) == 0 {
			b.pieces = b.pieces[1:]
		}
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// end takes the memory away.
func (b *body) end() {
	if sabotage.On(sabotage.UploadKeepsMemory) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended, b.pieces = true, nil
}

// md5 is the sum of what is still to be read, in base64.
func (b *body) md5() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	sum := md5.New()
	for _, piece := range b.pieces {
		sum.Write(piece)
	}
	return base64.StdEncoding.EncodeToString(sum.Sum(nil))
}
