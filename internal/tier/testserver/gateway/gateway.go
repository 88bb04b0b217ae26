// Package gateway installs the S3 server that tests use: Versity's gateway over a folder, from
// the Go module proxy, of a pinned version, once per user.
package gateway

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Version of the gateway. The name of what is built from it carries the version.
const Version = "v1.8.0"

const module = "github.com/versity/versitygw/cmd/versitygw"

// Install gives the gateway's path; if it is not there yet it is built, which takes minutes.
// Processes that ask at the same time wait for the one that builds.
func Install() (path string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder to build versitygw in: %w", err)
	}
	dir := filepath.Join(cache, "holdfast-test")
	path = filepath.Join(dir, "versitygw-"+Version)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", dir, err)
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return path, build(dir, path)
}

func build(dir, path string) error {
	out, err := os.MkdirTemp(dir, "build")
	if err != nil {
		return err
	}
	defer os.RemoveAll(out)
	install := exec.Command("go", "install", module+"@"+Version)
	install.Dir = out
	for _, v := range os.Environ() { // settings of this module's build are none of the gateway's
		if !strings.HasPrefix(v, "GOFLAGS=") && !strings.HasPrefix(v, "GOBIN=") && !strings.HasPrefix(v, "CGO_ENABLED=") {
			install.Env = append(install.Env, v)
		}
	}
	install.Env = append(install.Env, "GOBIN="+out, "CGO_ENABLED=0", "GOFLAGS=")
	if said, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("go install %s@%s: %w\n%s", module, Version, err, said)
	}
	return os.Rename(filepath.Join(out, "versitygw"), path)
}
