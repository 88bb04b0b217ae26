package bulk

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// TestCopyWritesExactly: every byte arrives, and none beside the slice is touched, however the two
// lie in their lines.
func TestCopyWritesExactly(t *testing.T) {
	const room = 24 << 10
	src := make([]byte, room)
	for i := range src {
		src[i] = byte(i*31 + i>>8)
	}
	rapid.Check(t, func(t *rapid.T) {
		from, to := rapid.IntRange(0, 130).Draw(t, "from"), rapid.IntRange(0, 130).Draw(t, "to")
		n := rapid.IntRange(0, room-130).Draw(t, "n")
		dst := bytes.Repeat([]byte{0xA5}, room)
		want := bytes.Clone(dst)
		copy(want[to:], src[from:from+n])
		Copy(dst[to:to+n], src[from:from+n])
		if !bytes.Equal(dst, want) {
			t.Fatalf("%d bytes from %d to %d are wrong", n, from, to)
		}
	})
}
