// Package bulk copies KV bytes, which are many and are not read again soon: past the processor's
// caches where that helps, and with their checksum on the way, so that it costs no second pass.
package bulk
