package cache

import (
	"encoding/binary"

	"github.com/zeebo/blake3"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/kv"
)

// maxNamespaces bounds the table of namespaces; a node serves a handful of models and,
// at worst, some thousands of tenants.
const maxNamespaces = 1 << 18

// Namespace interns a namespace; equal arguments give equal values for the life of the
// cache. When 262,144 different ones are known, a further one is nowhere (0).
func (c *Cache) Namespace(model string, world int, salt, layout string) Namespace {
	if sabotage.On(sabotage.SaltOutOfKey) {
		salt = ""
	}
	name := spaceName(model, world, salt, layout)
	ns, added := c.intern(name)
	if added {
		c.log.Info("new namespace", "namespace", ns, "model", model, "world", world, "salted", salt != "", "layout", layout)
	}
	if ns == 0 {
		c.log.Warn("too many namespaces: nothing is stored or found", "model", model, "limit", maxNamespaces)
	}
	return ns
}

func (c *Cache) intern(name kv.Digest) (ns Namespace, added bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ns, ok := c.spaces[name]; ok {
		return ns, false
	}
	if len(c.spaces) >= maxNamespaces {
		return 0, false
	}
	ns = Namespace(len(c.spaces) + 1)
	c.spaces[name] = ns
	return ns, true
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
