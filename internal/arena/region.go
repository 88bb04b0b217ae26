package arena

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Records are the tables behind the pool, in the same shared object, from which the next
// server learns what this one had: who may touch memory (peers), what namespaces are called
// (spaces), and what every slot is. They are sparse: only what is used is backed by memory,
// ahead of its first write, because a write that finds none is a SIGBUS. Clients that map
// size bytes of the object, as they are told, do not see them.
//
// Like Index it is for one goroutine at a time. The tables never shrink, and the object is
// never truncated.
type Records struct {
	mem []byte // nil if the words are not a mapping
	dims
	head  []uint64
	peers []uint64
	space []uint64
	slots []uint64

	back   func(off, n int64) error // backs a piece of the region; nil needs none
	backed [tables]int64            // bytes of each table, from its start
	starts [tables]int64            // of each table in the region

	held int64  // bytes of memory behind the whole object that is adopted; 0 = not known
	old  []Peer // of the server before, by holder

	listed map[Holder]uint32 // entries of peers
	spare  []uint32          // free entries of peers
}

// The tables of a region, behind its first page.
const (
	tablePeers = iota
	tableSpaces
	tableSlots
	tables
)

// dims are how many entries the tables of fixed size have.
type dims struct{ peers, half int }

// standard is format 1. A half of spaces has room for twice as many names as a cache knows, so
// that compacting frees half of it at least.
var standard = dims{peers: 1 << 14, half: 1 << 19}

const (
	// Words of the first page.
	hMagic, hSpaces, hPeers, hSlots = 0, 1, 2, 3

	regionMagic = 0x31_64_72_63_65_72_66_68 // "hfrecrd1" in memory

	// minRecordAlign is the unit of offsets in records.
	minRecordAlign = 1 << unitShift
)

// pieces are how much of each table is backed at a time.
var pieces = [tables]int64{16 << 10, 64 << 10, 256 << 10}

// tableBytes returns the length of each table for a pool, and of the whole region.
func (d dims) tableBytes(size, align int64) (bytes [tables]int64, region int64) {
	page := func(n int64) int64 { return (n + pageSize - 1) &^ (pageSize - 1) }
	bytes = [tables]int64{
		tablePeers:  page(int64(d.peers) * peerWords * 8),
		tableSpaces: page(2 * int64(d.half) * spaceWords * 8),
		// Extents number from 1; there is at most one a unit, and one more while one is cut.
		tableSlots: page((size/align + 2) * RecordBytes),
	}
	region = pageSize
	for _, n := range bytes {
		region += n
	}
	return bytes, region
}

// newRecords is the tables in the words of a region, which must have the right length.
func newRecords(words []uint64, size, align int64, d dims, back func(off, n int64) error) *Records {
	bytes, _ := d.tableBytes(size, align)
	r := &Records{dims: d, back: back, head: words[:pageSize/8], listed: make(map[Holder]uint32)}
	at := int64(pageSize)
	for t, into := range []*[]uint64{&r.peers, &r.space, &r.slots} {
		r.starts[t] = at
		*into = words[at/8 : (at+bytes[t])/8 : (at+bytes[t])/8]
		at += bytes[t]
	}
	return r
}

// mapRecords maps the region behind a pool of an object.
func mapRecords(fd int, size, align int64) (*Records, error) {
	_, region := standard.tableBytes(size, align)
	mem, err := unix.Mmap(fd, size, int(region), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of records: %w", region, err)
	}
	r := newRecords(words(mem), size, align, standard, func(off, n int64) error {
		return retry(func() error { return unix.Fallocate(fd, 0, size+off, n) })
	})
	r.mem = mem
	if err := r.back(0, pageSize); err != nil {
		return nil, fmt.Errorf("%w: no memory for the records (%w)", ErrNoRoom, unmap(mem, err))
	}
	return r, nil
}

func unmap(mem []byte, err error) error {
	if e := unix.Munmap(mem); e != nil {
		return fmt.Errorf("%w; %w", err, e)
	}
	return err
}

// fresh makes an empty region ready.
func (r *Records) fresh() {
	r.head[hMagic] = regionMagic
	for n := uint32(r.dims.peers); n > 0; n-- {
		r.spare = append(r.spare, n-1)
	}
}

// need backs a table up to its byte end.
func (r *Records) need(table int, end int64) error {
	if r.back == nil || end <= r.backed[table] {
		return nil
	}
	bytes := int64(8 * len([...][]uint64{r.peers, r.space, r.slots}[table]))
	end = min((end+pieces[table]-1)/pieces[table]*pieces[table], bytes)
	from := r.backed[table]
	if err := r.back(r.starts[table]+from, end-from); err != nil {
		return fmt.Errorf("%w: no memory for records (%w)", ErrNoRoom, err)
	}
	r.backed[table] = end
	return nil
}

// reach makes record n usable; without memory for it, it is an error and nothing changes.
func (r *Records) reach(n uint32) error {
	if uint64(n) < r.head[hSlots] && r.backed[tableSlots] >= (int64(n)+1)*RecordBytes {
		return nil
	}
	if (int(n)+1)*recordWords > len(r.slots) {
		return fmt.Errorf("%w: record %d is beyond the table", ErrNoRoom, n)
	}
	if err := r.need(tableSlots, (int64(n)+1)*RecordBytes); err != nil {
		return err
	}
	if most := r.head[hSlots]; uint64(n) >= most {
		for ; most <= uint64(n); most++ {
			r.at(uint32(most)).declare(0) // it is, unless the count was false
		}
		atomic.StoreUint64(&r.head[hSlots], most)
	}
	return nil
}

// at is record n, which reach has made usable.
func (r *Records) at(n uint32) record {
	return record(r.slots[int(n)*recordWords:][:recordWords:recordWords])
}

// Used is the memory of records in use, in bytes.
func (r *Records) Used() (bytes int64) {
	for _, n := range r.backed {
		bytes += n
	}
	return bytes
}

func word(b []byte) uint64       { return binary.NativeEndian.Uint64(b) }
func putWord(b []byte, w uint64) { binary.NativeEndian.PutUint64(b, w) }
