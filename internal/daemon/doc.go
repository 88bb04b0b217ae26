// Package daemon is the life of one server process: it binds the addresses, makes the
// pool, the cache and the server, backs the pool's pages in the background, and at the
// end drains and unlinks the pool, or leaves it to the next server of the same identity, which
// adopts it. It can also take over from a server that is running.
package daemon
