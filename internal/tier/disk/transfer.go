package disk

import (
	"github.com/holdfast-kv/holdfast/internal/tier"
)

// bounceBytes is the size of the buffer through which a worker moves objects whose memory
// O_DIRECT does not take.
const bounceBytes = 1 << 20

// scratch is the memory of one worker.
type scratch struct {
	head   []byte // a page: the header of the object in work
	tail   []byte // a page: the end of an object that does not fill its last one
	bounce []byte // made when it is needed first
	pieces [][]byte
}

func newScratch() *scratch {
	b := aligned(2 * page)
	return &scratch{head: b[:page], tail: b[page:]}
}

// straight reports whether a file's bytes can go from or to the object's memory itself. The
// slots of the pool start at pages.
func straight(f fileSystem, mem []byte) bool { return !f.direct() || isAligned(mem) }

// layOut gives the pieces of a whole file: header, the object's whole pages, its tail.
func (s *scratch) layOut(mem []byte) [][]byte {
	whole := len(mem) &^ (page - 1)
	s.pieces = append(s.pieces[:0], s.head)
	if whole > 0 {
		s.pieces = append(s.pieces, mem[:whole])
	}
	if whole < len(mem) {
		s.pieces = append(s.pieces, s.tail)
	}
	return s.pieces
}

// write writes header and object into a new file.
func (s *scratch) write(fs fileSystem, f file, h *tier.Header, mem []byte) error {
	clear(s.head)
	h.Encode(s.head)
	if straight(fs, mem) {
		tail := mem[len(mem)&^(page-1):]
		clear(s.tail[copy(s.tail, tail):])
		return f.write(s.layOut(mem), 0)
	}
	if err := f.write([][]byte{s.head}, 0); err != nil {
		return err
	}
	return s.inPieces(mem, func(at int64, n int, mem []byte) error {
		clear(s.bounce[copy(s.bounce, mem):n])
		return f.write([][]byte{s.bounce[:n]}, at)
	})
}

// read reads a file's header and object.
func (s *scratch) read(fs fileSystem, f file, h *tier.Header, mem []byte) error {
	if straight(fs, mem) {
		if err := f.read(s.layOut(mem), 0); err != nil {
			return err
		}
		copy(mem[len(mem)&^(page-1):], s.tail)
		return h.Decode(s.head)
	}
	if err := f.read([][]byte{s.head}, 0); err != nil {
		return err
	}
	if err := h.Decode(s.head); err != nil {
		return err
	}
	return s.inPieces(mem, func(at int64, n int, mem []byte) error {
		if err := f.read([][]byte{s.bounce[:n]}, at); err != nil {
			return err
		}
		copy(mem, s.bounce)
		return nil
	})
}

// inPieces calls move for each part of the object that the bounce buffer holds: its position in
// the file, its length in whole pages, and its memory.
func (s *scratch) inPieces(mem []byte, move func(at int64, n int, mem []byte) error) error {
	if s.bounce == nil {
		s.bounce = aligned(bounceBytes)
	}
	for at := 0; at < len(mem); at += bounceBytes {
		part := mem[at:min(at+bounceBytes, len(mem))]
		if err := move(page+int64(at), int(page*pages(int64(len(part)))), part); err != nil {
			return err
		}
	}
	return nil
}
