package lmcache

import "github.com/tinylib/msgp/msgp"

// appendNumber encodes n in its shortest form; non-negative numbers are unsigned, as
// msgspec has them (msgp's AppendInt64 prefers signed forms).
func appendNumber(dst []byte, n int64) []byte {
	if n < 0 {
		return msgp.AppendInt64(dst, n)
	}
	return msgp.AppendUint64(dst, uint64(n))
}

// appendInt encodes a field and its value, as do those below.
func appendInt(dst []byte, name string, n int) []byte {
	return appendNumber(msgp.AppendString(dst, name), int64(n))
}

func appendStr(dst []byte, name, s string) []byte {
	return msgp.AppendString(msgp.AppendString(dst, name), s)
}

func appendBool(dst []byte, name string, v bool) []byte {
	return msgp.AppendBool(msgp.AppendString(dst, name), v)
}

// appendInts encodes a field of ints; nil encodes nil.
func appendInts(dst []byte, name string, v []int) []byte {
	dst = msgp.AppendString(dst, name)
	if v == nil {
		return msgp.AppendNil(dst)
	}
	dst = msgp.AppendArrayHeader(dst, uint32(len(v)))
	for _, n := range v {
		dst = appendNumber(dst, int64(n))
	}
	return dst
}
