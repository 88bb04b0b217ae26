package workload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// MaxLine bounds one line of a trace in bytes. A request of a million tokens takes
// about 16 KiB.
const MaxLine = 1 << 20

// Reader reads a trace line by line.
type Reader struct {
	lines *bufio.Scanner
	name  string
	line  int
	last  int64
}

// NewReader reads from r; name stands for it in errors, which all have the form
// NAME:LINE: what is wrong.
func NewReader(r io.Reader, name string) *Reader {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), MaxLine)
	return &Reader{lines: s, name: name}
}

// record is a line as JSON has it. Pointers tell a missing field from a zero.
type record struct {
	Timestamp *int64   `json:"timestamp"`
	Input     *int     `json:"input_length"`
	Output    *int     `json:"output_length"`
	Blocks    []uint64 `json:"hash_ids"`
}

// Next returns the next request, or io.EOF. Empty lines are skipped, fields that the
// format does not name are ignored. Timestamps must not go back.
func (r *Reader) Next() (Request, error) {
	for r.lines.Scan() {
		r.line++
		line := bytes.TrimSpace(r.lines.Bytes())
		if len(line) == 0 {
			continue
		}
		req, err := parse(line)
		if err == nil && req.Timestamp < r.last {
			err = fmt.Errorf("%w: timestamp %d is before the previous one, %d", ErrInvalid, req.Timestamp, r.last)
		}
		if err != nil {
			return Request{}, r.at(r.line, err)
		}
		r.last = req.Timestamp
		return req, nil
	}
	err := r.lines.Err()
	switch {
	case err == nil:
		return Request{}, io.EOF
	case errors.Is(err, bufio.ErrTooLong):
		return Request{}, r.at(r.line+1, fmt.Errorf("%w: line longer than %d bytes", ErrInvalid, MaxLine))
	}
	return Request{}, r.at(r.line+1, err)
}

func (r *Reader) at(line int, err error) error {
	return fmt.Errorf("%s:%d: %w", r.name, line, err)
}

func parse(line []byte) (Request, error) {
	var rec record
	if err := json.Unmarshal(line, &rec); err != nil {
		return Request{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	switch {
	case rec.Timestamp == nil:
		return Request{}, fmt.Errorf("%w: no timestamp", ErrInvalid)
	case rec.Input == nil:
		return Request{}, fmt.Errorf("%w: no input_length", ErrInvalid)
	case rec.Output == nil:
		return Request{}, fmt.Errorf("%w: no output_length", ErrInvalid)
	case rec.Blocks == nil:
		return Request{}, fmt.Errorf("%w: no hash_ids", ErrInvalid)
	}
	req := Request{Timestamp: *rec.Timestamp, Input: *rec.Input, Output: *rec.Output, Blocks: rec.Blocks}
	return req, req.Validate()
}

// Read reads the first limit requests, all of them if limit is 0. A trace without a
// request is an error that wraps ErrInvalid.
func Read(r io.Reader, name string, limit int) ([]Request, error) {
	var trace []Request
	for in := NewReader(r, name); limit == 0 || len(trace) < limit; {
		req, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		trace = append(trace, req)
	}
	if len(trace) == 0 {
		return nil, fmt.Errorf("%s: %w: no request in it", name, ErrInvalid)
	}
	return trace, nil
}

// ReadFile is Read of a file.
func ReadFile(path string, limit int) ([]Request, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	defer f.Close()
	return Read(f, path, limit)
}
