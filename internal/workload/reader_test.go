package workload

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const good = `{"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [0, 1]}`

func TestReadFindsWhatIsWrong(t *testing.T) {
	for _, c := range []struct{ name, file, want string }{
		{"not JSON", good + "\nnot json", "t:2: invalid trace: invalid character"},
		{"cut off", `{"timestamp": 0`, "t:1: invalid trace: unexpected end"},
		{"two values", good + " " + good, "t:1: invalid trace: invalid character '{' after top-level value"},
		{"no timestamp", `{"input_length": 1, "output_length": 1, "hash_ids": [1]}`, "t:1: invalid trace: no timestamp"},
		{"no input", `{"timestamp": 0, "output_length": 1, "hash_ids": [1]}`, "t:1: invalid trace: no input_length"},
		{"no output", `{"timestamp": 0, "input_length": 1, "hash_ids": [1]}`, "t:1: invalid trace: no output_length"},
		{"no ids", `{"timestamp": 0, "input_length": 1, "output_length": 1}`, "t:1: invalid trace: no hash_ids"},
		{"fraction", `{"timestamp": 0.5, "input_length": 1, "output_length": 1, "hash_ids": [1]}`, "t:1: invalid trace: json: cannot unmarshal number 0.5"},
		{"negative time", `{"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [1]}`, "t:1: invalid trace: timestamp -1 is negative"},
		{"empty prompt", `{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}`, "t:1: invalid trace: input_length 0"},
		{"huge prompt", `{"timestamp": 0, "input_length": 9999999999, "output_length": 1, "hash_ids": []}`, "t:1: invalid trace: input_length 9999999999"},
		{"negative output", `{"timestamp": 0, "input_length": 1, "output_length": -1, "hash_ids": [1]}`, "t:1: invalid trace: output_length -1"},
		{"negative id", `{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [-1]}`, "t:1: invalid trace: json: cannot unmarshal number -1"},
		{"too few ids", `{"timestamp": 0, "input_length": 1025, "output_length": 1, "hash_ids": [1, 2]}`, "t:1: invalid trace: 2 hash_ids for an input_length of 1025, want 3"},
		{"too many ids", `{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1, 2]}`, "t:1: invalid trace: 2 hash_ids for an input_length of 512, want 1"},
		{"back in time", strings.Replace(good, ": 0,", ": 9,", 1) + "\n\n" + good, "t:3: invalid trace: timestamp 0 is before the previous one, 9"},
		{"long line", good + "\n" + strings.Repeat(" ", MaxLine+1), "t:2: invalid trace: line longer than 1048576 bytes"},
		{"empty", "\n \n", "t: invalid trace: no request in it"},
	} {
		_, err := Read(strings.NewReader(c.file), "t", 0)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s…", c.name, err, c.want)
		}
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v is not ErrInvalid", c.name, err)
		}
	}
}

func TestReadTakesWhatIsRight(t *testing.T) {
	want := []Request{
		{Timestamp: 0, Input: 513, Output: 5, Blocks: []uint64{0, 1}},
		{Timestamp: 7, Input: 512, Output: 0, Blocks: []uint64{18446744073709551615}},
	}
	file := good + "\r\n\n" + `{"hash_ids":[18446744073709551615],"output_length":0,"input_length":512,"timestamp":7,"later":{"x":[]}}`
	got, err := Read(strings.NewReader(file), "t", 0)
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
	// The limit stops before what follows, however broken.
	got, err = Read(strings.NewReader(good+"\nbroken"), "t", 1)
	if d := cmp.Diff(want[:1], got); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
	if _, err := ReadFile("testdata/no-such-file", 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

type broken struct{}

var errBroken = errors.New("broken")

func (broken) Read([]byte) (int, error) { return 0, errBroken }

func TestReadReportsTheSourcesError(t *testing.T) {
	_, err := Read(io.MultiReader(strings.NewReader(good+"\n"), broken{}), "t", 0)
	if !errors.Is(err, errBroken) || errors.Is(err, ErrInvalid) || !strings.HasPrefix(err.Error(), "t:2: ") {
		t.Errorf("got %v", err)
	}
}

// FuzzReader: whatever the bytes, a request that is accepted is valid and survives
// being written and read again.
func FuzzReader(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(good + "\n" + good))
	f.Add([]byte(`{"timestamp": 1e3, "input_length": 1, "output_length": 1, "hash_ids": [null]}`))
	f.Add([]byte(`{"timestamp": 0, "input_length": 999999999, "output_length": 0, "hash_ids": []}`))
	f.Add([]byte("\n\n{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := NewReader(bytes.NewReader(data), "fuzz")
		for {
			req, err := r.Next()
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, ErrInvalid) {
					t.Fatalf("error of no kind: %v", err)
				}
				return
			}
			if err := req.Validate(); err != nil {
				t.Fatalf("accepted: %v", err)
			}
			back, err := Read(bytes.NewReader(req.Append(nil)), "again", 0)
			if err != nil || len(back) != 1 || !cmp.Equal(back[0], req) {
				t.Fatalf("%+v came back as %+v, %v", req, back, err)
			}
		}
	})
}
