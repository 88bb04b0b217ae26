// Package daemon is the life of one server process: it binds the addresses, makes the
// pool, the cache and the server, backs the pool's pages in the background, and at the
// end drains and unlinks, whatever the way there.
package daemon
