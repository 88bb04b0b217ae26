package arena

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/holdfast-kv/holdfast/internal/killpoint"
)

// Peer is who a holder is, as far as it can be found again by the next server.
type Peer struct {
	Holder Holder
	// PID and Start are its process and when that started (process.Start); PID 0 is a process
	// that nobody knows, or whose end proves nothing.
	PID   int
	Start uint64
	// Instance is the worker's id, if HasInstance.
	Instance    uint64
	HasInstance bool
	// Desc is for people; 63 bytes of it are kept.
	Desc string
}

// An entry of the table: holder (written last, 0 = free), flags and pid, start time,
// instance, description.
const (
	peerWords = 12
	descBytes = 64

	pHolder, pWho, pStart, pInstance, pDesc = 0, 1, 2, 3, 4

	peerHasInstance = 1 << 32
)

// List records who a holder is, or what is known of it now. False means that the table is
// full: then the holder must not be let near memory, because the next server would not wait
// for it.
func (r *Records) List(p Peer) bool {
	// The last entry is for changes, which need one beside the old.
	if _, known := r.listed[p.Holder]; len(r.spare) == 0 || !known && len(r.spare) == 1 {
		return false
	}
	n := r.spare[len(r.spare)-1]
	if r.need(tablePeers, int64(n+1)*peerWords*8) != nil {
		return false
	}
	r.spare = r.spare[:len(r.spare)-1]
	if uint64(n) >= r.head[hPeers] {
		atomic.StoreUint64(&r.head[hPeers], uint64(n)+1)
	}
	e := r.peer(n)
	e[pWho] = uint64(uint32(p.PID))
	if p.HasInstance {
		e[pWho] |= peerHasInstance
	}
	e[pStart], e[pInstance] = p.Start, p.Instance
	var desc [descBytes]byte
	copy(desc[:descBytes-1], p.Desc)
	for i := range descBytes / 8 {
		e[pDesc+i] = word(desc[8*i:])
	}
	killpoint.Hit(killpoint.PeerBeforeHolder)
	atomic.StoreUint64(&e[pHolder], uint64(p.Holder))
	killpoint.Hit(killpoint.PeerBeforeClear)
	r.Unlist(p.Holder) // its old entry
	r.listed[p.Holder] = n
	return true
}

// Unlist forgets a holder that touches no memory any more and owns no slot.
func (r *Records) Unlist(h Holder) {
	if n, ok := r.listed[h]; ok {
		delete(r.listed, h)
		atomic.StoreUint64(&r.peer(n)[pHolder], 0)
		r.spare = append(r.spare, n)
	}
}

func (r *Records) peer(n uint32) []uint64 { return r.peers[n*peerWords:][:peerWords:peerWords] }

// loadPeers reads the table of an earlier server. Of a holder with two entries, which was being changed, what is less sure is taken. elsewhere says that
// the pids are those of other namespaces, where they name processes that nobody here sees.
func (r *Records) loadPeers(elsewhere bool) {
	used := uint32(min(r.head[hPeers], uint64(r.dims.peers)))
	if r.need(tablePeers, int64(used)*peerWords*8) != nil {
		used = 0
	}
	for n := uint32(r.dims.peers); n > used; n-- {
		r.spare = append(r.spare, n-1)
	}
	found := make(map[Holder]Peer)
	var second []uint32
	for n := range used {
		e := r.peer(n)
		p := readPeer(e)
		old, twice := found[p.Holder]
		switch {
		case twice:
			second = append(second, n)
		case p.Holder == 0, p.Holder >= Own:
			atomic.StoreUint64(&e[pHolder], 0)
			r.spare = append(r.spare, n)
			continue
		default:
			r.listed[p.Holder] = n
		}
		if twice && (old.PID != p.PID || old.Start != p.Start) || elsewhere {
			p.PID, p.Start = 0, 0
		}
		if twice && (!old.HasInstance || old.Instance != p.Instance) {
			p.HasInstance = false
		}
		found[p.Holder] = p
	}
	for h, p := range found {
		if readPeer(r.peer(r.listed[h])) != p {
			r.List(p)
		}
		r.old = append(r.old, p)
	}
	for _, n := range second { // the other says no more than both by now
		atomic.StoreUint64(&r.peer(n)[pHolder], 0)
		r.spare = append(r.spare, n)
	}
	slices.SortFunc(r.old, func(a, b Peer) int { return cmp.Compare(a.Holder, b.Holder) })
}

// Old lists the peers of the server before that may still touch memory, by holder.
func (r *Records) Old() []Peer { return r.old }

func readPeer(e []uint64) Peer {
	var desc [descBytes]byte
	for i := range descBytes / 8 {
		putWord(desc[8*i:], e[pDesc+i])
	}
	text, _, _ := strings.Cut(string(desc[:]), "\x00")
	return Peer{
		Holder: Holder(e[pHolder]), PID: int(int32(e[pWho])), Start: e[pStart],
		Instance: e[pInstance], HasInstance: e[pWho]&peerHasInstance != 0, Desc: strings.ToValidUTF8(text, "?"),
	}
}
