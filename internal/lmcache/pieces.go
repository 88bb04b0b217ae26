package lmcache

// pieceSize is the size of all pieces but the last.
const pieceSize = 256 << 10

// pieces hold a storage whose view is not known yet. They are allocated one by one as
// the bytes arrive, so a peer that announces a large storage and sends little costs
// little, and are used again for the next storage.
type pieces struct {
	all  [][]byte
	size int // of each piece; the whole if it is only one
}

// set makes b the content, without copying it.
func (p *pieces) set(b []byte) {
	p.all, p.size = append(p.all[:0], b), max(len(b), 1)
}

// grow returns piece i with room for at least n bytes.
func (p *pieces) grow(i int, n int) []byte {
	p.size = pieceSize
	if i == len(p.all) {
		p.all = append(p.all, nil)
	}
	if len(p.all[i]) < n {
		p.all[i] = make([]byte, n)
	}
	return p.all[i][:n]
}

// read fills the pieces with n bytes from s.
func (p *pieces) read(s *source, n int64) {
	for i := 0; n > 0 && s.err == nil; i++ {
		k := int(min(n, pieceSize))
		s.read(p.grow(i, k))
		n -= int64(k)
	}
}

// drop reads n bytes from s, all of them into the first piece.
func (p *pieces) drop(s *source, n int64) {
	for n > 0 && s.err == nil {
		k := int(min(n, pieceSize))
		s.read(p.grow(0, k))
		n -= int64(k)
	}
}

// copyOf fills the pieces with a copy of b.
func (p *pieces) copyOf(b []byte) {
	for i := 0; len(b) > 0; i++ {
		k := min(len(b), pieceSize)
		copy(p.grow(i, k), b[:k])
		b = b[k:]
	}
}

// copyTo copies the bytes from off on to dst.
func (p *pieces) copyTo(dst []byte, off int64) {
	i, at := int(off/int64(p.size)), int(off%int64(p.size))
	for len(dst) > 0 {
		k := copy(dst, p.all[i][at:])
		dst = dst[k:]
		i, at = i+1, 0
	}
}
