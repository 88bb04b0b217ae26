package cache

import (
	"encoding/binary"
	"math"

	"github.com/zeebo/blake3"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/kv"
)

// maxNamespaces bounds the table of names; a node serves a handful of models and some
// thousands of tenants. Salts that are made up for every request come to more.
const maxNamespaces = 1 << 18

// Namespace interns a namespace: equal arguments give equal values, and different ones
// never the same, for as long as anything is stored, held or open in it. When 262,144
// names are known those that have nothing are forgotten; if none has nothing, a further
// one is nowhere (0).
func (c *Cache) Namespace(model string, world int, salt, layout string) Namespace {
	if sabotage.On(sabotage.SaltOutOfKey) {
		salt = ""
	}
	ns, news := c.intern(spaceName(model, world, salt, layout))
	switch {
	case news && ns == 0:
		c.log.Warn("too many namespaces in use: further ones store and find nothing", "model", model, "limit", maxNamespaces)
	case news && salt == "":
		c.log.Info("new namespace", "namespace", ns, "model", model, "world", world, "layout", layout)
	case news: // as many as tenants, or requests
		c.log.Debug("new namespace", "namespace", ns, "model", model, "world", world, "salted", true, "layout", layout)
	}
	return ns
}

func (c *Cache) intern(name kv.Digest) (ns Namespace, news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.spaces.last
	if ns, news = c.spaces.intern(name, c.core.spacesInUse); ns > last {
		c.recordSpace(ns, name)
	}
	return ns, news
}

// spaces is the table of names. They are kept by a digest, so that a hostile client's long
// names cost no more than short ones. A number is never used twice: who still has an old
// one finds nothing, and never another's.
type spaces struct {
	most  int
	names map[kv.Digest]known
	asked uint64    // names asked for so far
	sweep uint64    // the table is not swept again before so many
	last  Namespace // given
	of    map[Namespace]kv.Digest
}

type known struct {
	ns    Namespace
	asked uint64 // when it was last asked for, by spaces.asked
}

func newSpaces(most int) spaces {
	return spaces{most: most, names: make(map[kv.Digest]known), of: make(map[Namespace]kv.Digest)}
}

// intern returns the number of a name, 0 if there is no room. news says that the name, or
// that there is no room, is worth telling.
func (s *spaces) intern(name kv.Digest, inUse func() map[Namespace]struct{}) (ns Namespace, news bool) {
	s.asked++
	if old, ok := s.names[name]; ok {
		s.names[name] = known{old.ns, s.asked}
		return old.ns, false
	}
	if len(s.names) >= s.most {
		if s.asked < s.sweep {
			return 0, false
		}
		s.forget(inUse())
	}
	if len(s.names) >= s.most || s.last == math.MaxUint32 {
		return 0, true
	}
	s.last++
	s.names[name] = known{s.last, s.asked}
	s.of[s.last] = name
	return s.last, true
}

// forget drops the names that are not in use. Those asked for of late stay: who asked may
// be about to use them.
func (s *spaces) forget(inUse map[Namespace]struct{}) {
	late := uint64(s.most / 4)
	s.sweep = s.asked + late
	for name, sp := range s.names {
		if _, used := inUse[sp.ns]; !used && sp.asked+late <= s.asked {
			delete(s.names, name)
			delete(s.of, sp.ns)
		}
	}
}

// spacesInUse collects the namespaces in which anything is stored, held or open.
func (c *core) spacesInUse() map[Namespace]struct{} {
	used := make(map[Namespace]struct{})
	for key := range c.objs.index {
		used[key.ns] = struct{}{}
	}
	for _, l := range c.requests {
		used[l.ns] = struct{}{}
	}
	for _, hs := range c.holders {
		for id := range hs.res { // also one that waits for its late commit
			used[id.ns] = struct{}{}
		}
		for id := range hs.reads {
			used[id.ns] = struct{}{}
		}
	}
	return used
}

// spaceName digests the four names; lengths in front keep "ab"+"c" from meeting "a"+"bc".
func spaceName(model string, world int, salt, layout string) kv.Digest {
	b := make([]byte, 0, 128)
	for _, s := range []string{model, salt, layout} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(s)))
		b = append(b, s...)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(world))
	return kv.Digest(blake3.Sum256(b))
}
