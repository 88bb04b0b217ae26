// Package testserver runs real servers for tests on loopback: Redis-protocol servers (single,
// cluster, sentinel), an S3 server, and a proxy in front of them that cuts, holds and shortens
// what passes. They keep nothing outside the test's temporary folder and end with the test,
// or with its process, however that ends.
package testserver
