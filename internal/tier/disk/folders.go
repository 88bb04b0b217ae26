package disk

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// folderSet is which of the directories of objects are there, durably.
type folderSet struct {
	mu   sync.Mutex // held while a directory is made, which is once for each
	made [folders]bool
}

// ensure makes an object's directory, if it is missing.
func (s *folderSet) ensure(fs fileSystem, first byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made[first] {
		return nil
	}
	err := fs.mkdir(folder(first))
	if errors.Is(err, unix.EEXIST) {
		err = nil
	}
	if err == nil {
		err = fs.syncDir(objectsDir)
	}
	if err != nil {
		return fmt.Errorf("make the directory %s: %w", folder(first), err)
	}
	s.made[first] = true
	return nil
}

// forget says that an object's directory is not there after all.
func (s *folderSet) forget(first byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made[first] = false
}
