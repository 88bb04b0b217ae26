package disk

import "time"

// fileSystem is what a store needs of a file system. Names are relative to the store's
// directory. Errors are those of the system (unix.Errno, wrapped or not). Two implementations:
// the real one, and for tests and simulations a model that loses what was not synced (Model).
type fileSystem interface {
	// create makes a file that is not there, for writing.
	create(name string) (file, error)
	// reopen opens a file to be written over.
	reopen(name string) (file, error)
	// open opens a file for reading.
	open(name string) (file, error)
	// rename gives a file its name, in place of what had it.
	rename(from, to string) error
	remove(name string) error
	mkdir(name string) error
	// syncDir makes the names in a directory durable.
	syncDir(name string) error
	// list calls f with the name of everything in a directory, in any order.
	list(name string, f func(name string)) error
	stat(name string) (info, error)
	// free tells how many bytes may be written, and how big the file system is.
	free() (available, total int64, err error)
	// direct reports whether files need memory, lengths and positions of whole pages.
	direct() bool
	close() error
}

// file is an open file.
type file interface {
	// allocate takes n bytes of the disk for the file, so that there is no lack of room later: for
	// files whose writes go to the disk after they have returned. A file system that cannot is
	// no error.
	allocate(n int64) error
	// write writes all of the pieces at a position, read fills all of them; the end of the file
	// before that is io.ErrUnexpectedEOF.
	write(pieces [][]byte, at int64) error
	read(pieces [][]byte, at int64) error
	// sync makes the file's bytes durable, and what is needed to find them.
	sync() error
	stat() (info, error)
	// touch sets the time of the last use.
	touch(t time.Time) error
	// drop tells the system that the file's bytes are not needed in its cache.
	drop()
	close() error
}

// info is what a file system knows of a file.
type info struct {
	size  int64 // its length
	taken int64 // what it takes of the disk
	used  time.Time
	plain bool // a regular file
	dir   bool
}
