//go:build sabotage

package s3

import (
	"testing"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

// TestSabotageUploadKeepsMemory: without the end of a body, memory is read after it.
func TestSabotageUploadKeepsMemory(t *testing.T) {
	sabotage.Set(sabotage.UploadKeepsMemory, true)
	defer sabotage.Set(sabotage.UploadKeepsMemory, false)
	if readAfterEnd(t) == 0 {
		t.Fatal("nothing is read after the end: the switch removes nothing")
	}
}

// TestSabotageUploadWithoutSum: without a sum the server makes uploads visible that were cut.
func TestSabotageUploadWithoutSum(t *testing.T) {
	sabotage.Set(sabotage.UploadWithoutSum, true)
	defer sabotage.Set(sabotage.UploadWithoutSum, false)
	if cutUploads(t) == 0 {
		t.Fatal("no upload that was cut is visible: the sum is not what prevents it")
	}
}
