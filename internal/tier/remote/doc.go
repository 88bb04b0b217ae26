// Package remote is what the stores at the other end of a network have in common: how they
// are found to be well or ill, tried again, closed, and spoken to under TLS.
package remote
