package dense

import (
	"encoding/hex"
	"fmt"

	"github.com/zeebo/blake3"
)

// schema names the byte format of objects. It changes whenever the same geometry gives
// other bytes.
const schema = "holdfast-dense-v1"

// Namespace returns the model name that a store keeps the objects under:
// <model>::holdfast-dense-v1-<32 hex digits>. The digits are a BLAKE3 digest of everything
// that decides what an object's bytes are. Scheduler half and ranks derive it each from
// their own Spec; a difference makes every lookup a miss, never a wrong byte.
func (s Spec) Namespace() (string, error) {
	if err := s.Validate(); err != nil {
		return "", err
	}
	h := blake3.New()
	// One line per field, quoted text: no two specs give the same lines. RankHeads is left out since
	// it follows from the rest.
	fmt.Fprintf(h, "schema=%q\nmodel=%q\nfamily=%q\nlayers=%d\ndraft_layers=%d\n", schema, s.Model, string(s.Family), s.Layers, s.DraftLayers)
	fmt.Fprintf(h, "kv_heads=%d\nhead_dim=%d\nscales=%q\n", s.KVHeads, s.HeadDim, string(s.Scales))
	fmt.Fprintf(h, "latent_dim=%d\nindex_dim=%d\nindex_dtype=%q\n", s.LatentDim, s.IndexDim, string(s.IndexDType))
	fmt.Fprintf(h, "kv_dtype=%q\nblock=%d\nchunk=%d\ntp=%d\n", string(s.KVDType), s.BlockSize, s.ChunkTokens, s.TensorParallel)
	return s.Model + "::" + schema + "-" + hex.EncodeToString(h.Sum(nil)[:16]), nil
}
