package disk

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/kv"
)

// What the directory has. docs/disk.md describes it.
const (
	objectsDir = "objects"
	tempDir    = "tmp"
	probeFile  = tempDir + "/0" // made at the start and removed; temporaries count from 1
	formatFile = "FORMAT"
	lockFile   = "lock"
)

// folders is how many directories share the objects: by the first byte of the chunk's digest,
// which is as good as random. A million objects make 4096 in each.
const folders = 256

// errName is wrapped by the error for a file name that is not an object's.
var errName = errors.New("not an object's file")

// folder is the directory of an object, relative to the store's.
func folder(first byte) string {
	return objectsDir + "/" + hex.EncodeToString([]byte{first})
}

// fileName is the name of an object's file in its folder: the whole key and the length, so
// that a scan learns both without opening it. SPACE.CHUNK.RANK.GROUP.LENGTH, digests in
// lower-case hex, numbers in decimal. parseName reads it.
func fileName(key tier.Key, length int64) string {
	b := []byte(key.String())
	b[2*len(key.Space)] = '.'
	b = append(b, '.')
	return string(strconv.AppendInt(b, length, 10))
}

// objectPath is where an object's file is, relative to the store's directory.
func objectPath(key tier.Key, length int64) string {
	return folder(key.Chunk[0]) + "/" + fileName(key, length)
}

// parseName reads what fileName wrote, and only that: every object has one name.
func parseName(name string) (key tier.Key, length int64, err error) {
	const digest = 2 * len(key.Space)
	cut := strings.LastIndexByte(name, '.')
	if cut <= digest || name[digest] != '.' {
		return tier.Key{}, 0, fmt.Errorf("%w: %.300q", errName, name)
	}
	key, err = tier.ParseKey(name[:digest] + "/" + name[digest+1:cut])
	if err != nil {
		return tier.Key{}, 0, fmt.Errorf("%w: %w", errName, err)
	}
	length, err = strconv.ParseInt(name[cut+1:], 10, 64)
	if err != nil || length < 1 || length > kv.MaxObjectBytes || strconv.FormatInt(length, 10) != name[cut+1:] {
		return tier.Key{}, 0, fmt.Errorf("%w: length %.40q", errName, name[cut+1:])
	}
	return key, length, nil
}

// isTemp reports whether a file in tmp has a name that the store gives.
func isTemp(name string) bool {
	n, err := strconv.ParseUint(name, 10, 64)
	return err == nil && strconv.FormatUint(n, 10) == name
}

// fileBytes is how long an object's file is: a page with the header, and the object, filled
// up with zeros to whole pages.
func fileBytes(length int64) int64 { return page + page*pages(length) }
