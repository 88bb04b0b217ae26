// Command install builds the S3 server that tests use, if it is not there, and prints its path.
package main

import (
	"fmt"
	"os"

	"github.com/holdfast-kv/holdfast/internal/tier/testserver/gateway"
)

func main() {
	path, err := gateway.Install()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	fmt.Println(path)
}
