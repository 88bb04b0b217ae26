// Package disk keeps objects in a directory, one file each, and knows without I/O what is
// there. docs/disk.md describes the directory.
//
// A file is written beside, under a temporary name, made durable to the degree that was
// chosen, and only then renamed to its own name; what has its own name was put completely,
// or is told from it by its header and checksum. Room is reserved before a file is made: the
// oldest files go first, and the limit is never passed.
//
// The package has three parts. index is the state machine: which objects are there, which
// goes next, what is reserved; without locks, clocks or I/O. fileSystem is what the store
// needs of a file system, small enough that a model of a crash can stand in for it. Store is
// the shell: a bounded number of workers that read and write, and one lock around the index. What
// it does at the same time and what it waits for is a world's: goroutines, or steps of a simulation (OpenModel).
package disk
