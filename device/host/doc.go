// Package host is a software accelerator on the CPU: a device.Device that runs anywhere and
// is as unforgiving as a GPU. It serves tests, the reference engine and the simulator.
//
// Its memory is ordinary memory, its copies are copy(), its streams are real queues. A copy,
// gather or scatter reads its source when it runs, so one that was not ordered behind its
// producer moves wrong bytes. Three modes say who runs what is enqueued:
//
//   - Concurrent: every stream has a goroutine. Operations run in order on their stream and
//     concurrently with other streams; a Wait blocks its own stream only. A large operation is carried
//     out by several processors, as a GPU's is by many threads.
//   - Deferred: nothing runs before somebody waits for it. Query runs nothing. Synchronize, on
//     the goroutine that calls it, runs exactly what its event or stream needs, in dependency
//     order; Close runs the rest. A copy that lacks its fence therefore always runs without
//     its producer having run, where a GPU loses that race only sometimes.
//   - Controlled: nothing runs on its own. The owner picks any runnable operation of any
//     stream with Runnable and Run, or lets a seeded source pick with Step. Synchronize picks
//     with Options.Pick until its target has completed; without one it does as in Deferred.
//
// With Options.Direct, gather and scatter also take registered host memory, as those of a GPU may. Both
// kinds of devices are offered so that both ways of offloading can be tested anywhere.
//
// Kernels of an engine are functions enqueued with Stream.Launch that work on the slices
// that Bytes returns. A kernel must not synchronize, run or close anything of its device.
//
// # Failures
//
// Options.Fault is asked at every call and again when every operation runs. An error at a
// call fails that call and nothing else. An error when an operation runs makes the device
// fail as CUDA does: that operation and all later ones move nothing, the streams drain, and
// every later call returns the error, wrapped with device.ErrDevice. An operation whose
// memory was freed before it ran fails the same way. Operations that were running at that
// moment on other streams go on until they are done, as nothing stops a kernel.
//
// Misuse that a GPU punishes at random is reported: Free returns ErrFreed or ErrInUse, Check
// lists what happened so far, and Close adds what was never given back (ErrLeak). In
// asserting builds freed device memory is filled with 0xDB.
package host
