// Package evict orders objects for eviction: the one interface that memory and disk ask
// which object goes next, and the order that both use, least recently used first.
package evict
