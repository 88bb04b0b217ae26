// Package sim runs the whole connector on one goroutine under a virtual clock: a generator of
// requests, a model of an engine's scheduler loop over the real block pool, the real
// scheduler half, and two to four ranks, each with the real worker half, a software device
// whose operations run when the simulation says so, and one real cache with evictions. A seed
// decides everything that can happen in more than one way: the workload, the order of all
// actions of all lanes and streams, and which calls fail.
//
// Behind the cache there are none to two second-level stores that fail in part, lose and damage
// what they keep, and take long whatever their contexts say. What the cache does in the background
// goes on step by step among everything else, and its deadlines pass when the seed says so. Now and then
// everything is cleared, and nothing of before may come back. Some of these stores are the
// project's own S3 store before a bucket that answers its requests in place: a poor one, which shows what has
// come of an upload that is cut, unless a sum forbids it, and reads uploads for a while after its reply.
//
// In some runs one of the stores is the project's own on a disk, over a model of a file system whose power fails: what
// comes of that is right or not there, what was promised to survive has, and no limit is ever passed.
//
// In some runs the store is a server's: it is killed between any two actions, and the next one takes
// over its memory, while the copies of the ranks go on. What was settled must be served again, as it
// was or not at all; and until it is true that a rank has ended what it had begun in an earlier life,
// and the server is told so, nothing of it may be given out.
//
// KV bytes are a function of the tokens up to a position, the rank and the plane. Forwards
// write them through the compute stream and compare all they read; commits and loads are
// compared with the function as well. So a copy without its order, a block that was freed too
// early, or an object under a wrong key shows as a wrong byte. Beside that, every step checks
// the books of all parts, and that no block and no slot is given out that a transfer may
// still touch.
//
// A failing seed is shrunk to a Script: the seed, and those of its draws that matter. The
// same script gives the same run.
package sim
