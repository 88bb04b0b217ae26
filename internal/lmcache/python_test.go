package lmcache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-kv/holdfast/kv"
)

// python runs testdata/tensors.py with the first interpreter there is. A machine
// without one cannot show that our pickles load, so the test fails there.
func python(t *testing.T, stdin []byte, args ...string) []byte {
	t.Helper()
	for _, name := range []string{os.Getenv("HOLDFAST_PYTHON"), "python3", "/usr/bin/python3"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		cmd := exec.Command(path, append([]string{"testdata/tensors.py"}, args...)...)
		cmd.Stdin = bytes.NewReader(stdin)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, &stderr)
		}
		return out
	}
	t.Fatal("no Python interpreter: set HOLDFAST_PYTHON or install python3")
	return nil
}

func TestPythonLoadsOurPickles(t *testing.T) {
	type line struct {
		DType  kv.DType
		Shape  []int
		SHA256 string
	}
	var layouts []kv.ChunkLayout
	var raw [][]byte
	var want []line
	add := func(dtype kv.DType, shape ...int) {
		l := kv.ChunkLayout{Shape: shape, DType: dtype}
		n, err := l.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		b := pattern(int(n), len(raw))
		sum := sha256.Sum256(b)
		layouts, raw = append(layouts, l), append(raw, b)
		want = append(want, line{dtype, shape, hex.EncodeToString(sum[:])})
	}
	for _, dtype := range kv.DTypes() {
		add(dtype, 2, 3, 16, 8)
		add(dtype, 3, 300, 36)
		add(dtype, 1)
	}
	add(kv.BFloat16, 2, 4, 256, 128)
	add(kv.UInt8, 1, 70_000)

	out := json.NewDecoder(bytes.NewReader(python(t, bytes.Join(TensorSegments(layouts, raw), nil), "load")))
	var got []line
	for out.More() {
		var l line
		if err := out.Decode(&l); err != nil {
			t.Fatal(err)
		}
		got = append(got, l)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if out := python(t, bytes.Join(TensorSegments(nil, nil), nil), "load"); len(out) > 0 {
		t.Errorf("an empty list loads as %s", out)
	}
}

// TestWeReadPythonsPickles reads what Python's pickler writes, with lists long enough for
// several batches and for every width of memo index.
func TestWeReadPythonsPickles(t *testing.T) {
	counts := []int{0, 1, 2, 40, 1001, 2300}
	args := []string{"dump"}
	for _, n := range counts {
		args = append(args, strconv.Itoa(n))
	}
	out := python(t, nil, args...)
	for _, n := range counts {
		for protocol := 3; protocol <= 5; protocol++ {
			size := binary.LittleEndian.Uint64(out)
			data := out[8 : 8+size]
			out = out[8+size:]
			if data[1] != byte(protocol) {
				t.Fatalf("protocol %d, want %d", data[1], protocol)
			}
			tensors, err := DecodeTensors(data, n)
			if err != nil || len(tensors) != n {
				t.Fatalf("%d tensors of %d with protocol %d, %v", len(tensors), n, protocol, err)
			}
			for i, tensor := range tensors {
				var want []byte
				for k := range 6 {
					want = binary.LittleEndian.AppendUint16(want, uint16(i+k))
				}
				if !same([]Tensor{tensor}, []Tensor{{kv.ChunkLayout{Shape: []int{2, 3}, DType: kv.Float16}, want}}) {
					t.Fatalf("tensor %d is %v", i, tensor)
				}
			}
		}
	}
}
