// Package s3 is the second-level store on servers of the S3 protocol.
//
// One object is one S3 object: PREFIX + key.String() → header (128 bytes) + object. S3 makes an
// object visible when it is whole; what exists is kept by a conditional put (If-None-Match: *),
// where the server knows it.
//
// Bodies are read and written by goroutines of net/http: an upload reads the object's memory
// through a body that is taken away before Put returns, and a download is read into the
// target's memory by the goroutine that Get waits for.
package s3
