package server

import (
	"errors"
	"fmt"

	"github.com/tinylib/msgp/msgp"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
)

var (
	// errRefused is wrapped for a request that is well formed and cannot be served.
	errRefused = errors.New("request refused")
	// errDraining is wrapped for one that comes too late.
	errFull     = fmt.Errorf("%w: no memory", errRefused)
	errDraining = fmt.Errorf("%w: the server is shutting down", errRefused)
	errGivenUp  = fmt.Errorf("%w: the client gave the store up", errRefused)
	errBusy     = fmt.Errorf("%w: the requests that are being read take all the memory that is for them", errRefused)

	errTooMany  = fmt.Errorf("%w: too many frames", lmcache.ErrMalformed)
	errTooFew   = fmt.Errorf("%w: too few frames", lmcache.ErrMalformed)
	errTooLarge = fmt.Errorf("%w: a frame is too large", lmcache.ErrMalformed)
)

// whole turns what a msgpack reader returned into an error unless it took the whole frame.
func whole(what string, rest []byte, err error) error {
	if err != nil {
		return fmt.Errorf("%w: %s: %w", lmcache.ErrMalformed, what, err)
	}
	if len(rest) > 0 {
		return fmt.Errorf("%w: %s: %d bytes too many", lmcache.ErrMalformed, what, len(rest))
	}
	return nil
}

// maxRequestID bounds what a request can make the session table and the cache remember.
const maxRequestID = 1024

func decodeRequestID(frame []byte) (string, error) {
	s, rest, err := msgp.ReadStringBytes(frame)
	if err := whole("request id", rest, err); err != nil {
		return "", err
	}
	return s, checkRequestID(s)
}

func checkRequestID(s string) error {
	if len(s) > maxRequestID {
		return fmt.Errorf("%w: request id of %d bytes, at most %d", errRefused, len(s), maxRequestID)
	}
	return nil
}

func decodeInstance(frame []byte) (uint64, error) {
	id, rest, err := msgp.ReadUint64Bytes(frame)
	return id, whole("instance id", rest, err)
}

// decodeSeconds accepts an int where a float is declared.
func decodeSeconds(frame []byte) (float64, error) {
	f, rest, err := msgp.ReadFloat64Bytes(frame)
	if err != nil {
		var i int64
		i, rest, err = msgp.ReadInt64Bytes(frame)
		f = float64(i)
	}
	return f, whole("timeout", rest, err)
}

func decodeBool(frame []byte) (bool, error) {
	b, rest, err := msgp.ReadBoolBytes(frame)
	return b, whole("flag", rest, err)
}
