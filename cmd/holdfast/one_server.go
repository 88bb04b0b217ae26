package main

import "fmt"

// oneServer is the value of --server. Given twice, the flag does not mean the last one: who names two
// servers would think that both are used.
type oneServer struct{ address *string }

func (v oneServer) String() string {
	if v.address == nil {
		return "" // as package flag makes one to learn the default
	}
	return *v.address
}

func (oneServer) Type() string { return "string" }

func (v oneServer) Set(s string) error {
	if *v.address != "" {
		return fmt.Errorf("it is %s already; give one server", *v.address)
	}
	*v.address = s
	return nil
}
