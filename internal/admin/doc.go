// Package admin is the HTTP side of a server: health, status, metrics, and the one
// command there is, to clear the cache. It reads snapshots and holds no state.
//
// There is no authentication: it binds 127.0.0.1 unless told otherwise, and refuses
// cross-origin posts, so that a web page cannot clear a cache through a browser.
package admin
