// Package device is what KV offload needs of an accelerator: streams, events, memory, and
// the copies that move KV. A driver implements it: device/host is a software accelerator on
// the CPU, and CUDA or HIP fit behind the same interfaces.
//
// # Rules
//
// Everything enqueued on a stream runs in order on that stream, later than the call that
// enqueued it; streams run concurrently. Only an event orders one stream after another. A
// copy reads its source when it runs, not when it is enqueued. So whoever enqueues a copy
// makes its stream wait for an event of the source's producer first, and lends its result
// to others only after an event recorded behind the copy was seen to complete.
//
// An error of enqueued work is sticky: it surfaces at some later call on any object of the
// device, and at every call after that. From a device that failed nothing can be proven any
// more: neither that a copy has happened nor that it will not go on. Free and the Close
// methods of streams and events take effect on a failed device too, and report only errors
// of their own.
//
// Slices given to a call (segments, blocks) belong to the caller again when it returns.
//
// # Writing a driver
//
// What each call is in CUDA; HIP has the same calls with the prefix hip. A driver makes the
// device current on the calling thread first, and keeps its objects usable from any
// goroutine.
//
//	NewStream             cudaStreamCreateWithFlags(cudaStreamNonBlocking): a stream that
//	                      synchronises with the legacy default stream hides missing events
//	NewEvent              cudaEventCreateWithFlags(cudaEventDisableTiming)
//	Alloc                 cudaMalloc
//	Register              cudaHostRegister over whole pages. CUDA refuses a page that is
//	                      registered already, so the driver counts its users
//	Memory.Free           cudaFree, which waits for the device by itself, or
//	                      cudaHostUnregister by the last user of a page, which does not
//	Stream.Record         cudaEventRecord
//	Stream.Wait           cudaStreamWaitEvent. It takes the record of the time of the call: a
//	                      record made later does not change it. CUDA lets an event that was
//	                      never recorded pass; a driver keeps a flag and returns ErrNotRecorded
//	Stream.Copy           cudaMemcpyAsync(cudaMemcpyDefault)
//	Stream.Gather         one kernel over segments × blocks. The block ids go to the device
//	Stream.Scatter        first, on the same stream, from pinned memory that is not written
//	                      again before an event behind that upload has completed
//	Direct                true if the kernel also takes the address that
//	                      cudaHostGetDevicePointer gives for registered memory
//	Stream.Query          cudaStreamQuery; cudaErrorNotReady is (false, nil)
//	Stream.Synchronize    poll cudaStreamQuery, or park a thread in cudaStreamSynchronize, and
//	                      return early when ctx ends
//	Event.Query           cudaEventQuery
//	Event.Synchronize     as for streams
//	Stream.Close          cudaStreamDestroy, which lets enqueued work finish
//	Event.Close           cudaEventDestroy, likewise
//
// Any status other than success and not-ready is kept, wrapped with ErrDevice, and returned
// by Err and by every later call. Arguments are checked with CheckCopy, CheckGather and
// CheckScatter before anything is enqueued: a kernel with a bad block id writes over the KV
// of somebody else, or takes the whole process down.
package device
