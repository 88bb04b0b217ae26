package lmcache

import (
	"errors"
	"fmt"

	"github.com/holdfast-kv/holdfast/kv"
)

// ErrLayout is wrapped when a registration describes objects that Holdfast does not serve.
var ErrLayout = errors.New("unsupported KV layout")

// ChunkLayouts returns the tensor of one chunk per object group, for a chunk of chunkSize
// tokens: one element for an ordinary model, one per group for a flat multi-group one.
// Sliding-window and recurrent groups, several tensors per object and unknown dtypes are
// ErrLayout with the reason (§4.7).
func (r *Registration) ChunkLayouts(chunkSize int) ([]kv.ChunkLayout, error) {
	if err := r.serveable(); err != nil {
		return nil, err
	}
	groups, err := r.groupCount()
	if err != nil {
		return nil, err
	}
	layouts := make([]kv.ChunkLayout, groups)
	for g := range layouts {
		if len(r.GroupLayouts) > 0 {
			layouts[g], err = r.GroupLayouts[g].single()
		} else {
			layouts[g], err = r.groupLayout(g, groups, chunkSize)
		}
		if err == nil {
			_, err = layouts[g].Bytes()
		}
		if err != nil {
			return nil, fmt.Errorf("%w: group %d of %d: %w", ErrLayout, g, groups, err)
		}
	}
	return layouts, nil
}

// serveable refuses what is stored in a way that Holdfast has no place for.
func (r *Registration) serveable() error {
	if r.KVWeave {
		return fmt.Errorf("%w: enable_l1_kvweave_quant: quantised objects", ErrLayout)
	}
	if r.KernelGroups > 1 {
		return fmt.Errorf("%w: kernel_groups: %d tensors in one object", ErrLayout, r.KernelGroups)
	}
	for _, g := range r.Groups {
		if g.Recurrent {
			return fmt.Errorf("%w: engine group %d holds recurrent state", ErrLayout, g.ID)
		}
		if g.WindowTokens >= 0 {
			return fmt.Errorf("%w: engine group %d has a sliding window of %d tokens", ErrLayout, g.ID, g.WindowTokens)
		}
	}
	return nil
}

// groupCount is the number of object groups; every list that names groups must agree.
func (r *Registration) groupCount() (int, error) {
	groups := 0
	for _, n := range []int{len(r.GroupLayouts), len(r.GroupHidden), len(r.Groups)} {
		if n > 0 && groups > 0 && n != groups {
			return 0, fmt.Errorf("%w: lists of %d and of %d groups", ErrLayout, groups, n)
		}
		groups = max(groups, n)
	}
	return max(groups, 1), nil
}

// groupLayout computes group g's tensor from the counts of the registration. A single
// group is the ordinary model, whatever layers it lists.
func (r *Registration) groupLayout(g, groups, chunkSize int) (kv.ChunkLayout, error) {
	dtype, err := kv.ParseDType(r.DType)
	if err != nil {
		return kv.ChunkLayout{}, err
	}
	layers, hidden, slots := r.Layers, r.Hidden, r.PhysicalSlots
	if groups > 1 && len(r.Groups) > 0 {
		layers = len(r.Groups[g].Layers)
	}
	if len(r.GroupHidden) > 0 {
		hidden = r.GroupHidden[g]
	}
	if slots == 0 {
		slots = chunkSize
	}
	shape := []int{layers, slots, hidden}
	if !r.OnePlane {
		shape = append([]int{2}, shape...)
	}
	return kv.ChunkLayout{Shape: shape, DType: dtype}, nil
}

// single is the descriptor's only tensor.
func (l *LayoutDesc) single() (kv.ChunkLayout, error) {
	if len(l.Shapes) != 1 || len(l.DTypes) != 1 {
		return kv.ChunkLayout{}, fmt.Errorf("%d shapes and %d dtypes in one object", len(l.Shapes), len(l.DTypes))
	}
	dtype, err := kv.ParseDType(l.DTypes[0])
	return kv.ChunkLayout{Shape: l.Shapes[0], DType: dtype}, err
}
