// Package process tells which process is at the other end of a local connection, and
// when it has ended: the proof that it writes into its slots no more (design, rule 2).
// Linux only.
//
// What it cannot see is a child that a process forked after mapping shared memory: the
// child has the mapping, too, and outlives its parent's exit. Engines do not let such
// children write.
package process
