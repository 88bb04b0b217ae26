package adapter

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/holdfast-kv/holdfast/internal/tier/disk"
)

var diskKind = kind{
	kind: Disk, aliases: []string{"fs", "fs_native"},
	doc:      "A directory of this node, for one server. It survives restarts, has a limit that it keeps, and evicts what is used least recently.",
	example:  `{"type":"disk","path":"/var/cache/holdfast","size_gb":500}`,
	defaults: func(*Spec) {},
	fields: []field{
		{name: "path", aliases: []string{"base_path"}, values: "text, required", doc: "The directory. It is made if it is missing; it must be empty or a store.",
			set: text(func(s *Spec) *string { return &s.Disk.Path })},
		{name: "size_gb", aliases: []string{"max_capacity_gb"}, values: "GiB, 0 = none", doc: "The most that objects may take. Default: none, all of the file system but reserve_free_gb.",
			set: gibibytes(func(s *Spec) *int64 { return &s.Disk.LimitBytes })},
		{name: "reserve_free_gb", values: "GiB", doc: "What the file system keeps free, whoever uses the rest. Default: 1, or 2 % of the file system if that is less.", set: setReserve},
		{name: "sync", values: "none, data, full", doc: "What a power failure may cost: none: what was put in the last half minute; data: some of the last seconds; full: nothing. Default: data.",
			set: choice(func(s *Spec) *disk.Sync { return &s.Disk.Sync }, disk.SyncNone, disk.SyncData, disk.SyncFull)},
		{name: "queue_depth", values: "1 to 1024", doc: "How many objects are read at a time, and how many are written. Default: 16.",
			set: integer(func(s *Spec) *int { return &s.Disk.QueueDepth }, 1, 1024)},
		{name: "direct", aliases: []string{"use_odirect"}, values: "auto, off; true, false", doc: "Whether files are read and written past the system's cache, where the file system can. Default: auto.", set: setDirect},
		{name: "relative_tmp_dir", values: "text", doc: "LMCache's directory for unfinished files.", set: anything, without: "unfinished files have a place of their own in the store's directory"},
		{name: "read_ahead_size", values: "number", doc: "LMCache's first piece of a read.", set: anything, without: "an object is read in one piece"},
		{name: "recover_on_start", values: "true, false", doc: "LMCache's scan.", set: anything, without: "a disk always learns what it holds, while it serves"},
	},
	check: func(s *Spec) (string, error) {
		if s.Disk.Path == "" {
			return "", errors.New(`field "path" is missing`)
		}
		if s.Disk.LimitBytes == 0 {
			return fmt.Sprintf("the disk at %s has no limit (field %q): it may fill its file system, but for a reserve", s.Disk.Path, "size_gb"), nil
		}
		return "", nil
	},
}

func setReserve(s *Spec, value json.RawMessage) error {
	err := gibibytes(func(s *Spec) *int64 { return &s.Disk.ReserveFree })(s, value)
	if err == nil && s.Disk.ReserveFree == 0 {
		s.Disk.ReserveFree = -1 // none; 0 is the default
	}
	return err
}

func setDirect(s *Spec, value json.RawMessage) error {
	switch string(value) {
	case "true", `"auto"`:
		s.Disk.Direct = disk.DirectAuto
	case "false", `"off"`:
		s.Disk.Direct = disk.DirectOff
	default:
		return errors.New(`must be "auto" (or true) or "off" (or false)`)
	}
	return nil
}
