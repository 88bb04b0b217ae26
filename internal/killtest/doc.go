// Package killtest has only tests: real client and server processes that are stopped and
// killed at the worst moments, while others hammer the same small pool and compare every
// byte. They demand what the design's second rule says: memory is given to another on
// proof that its user has stopped, never before, and always then.
//
// A child process is the test binary itself, told by its environment what to be. It takes
// one command a line on its standard input and answers each with one line.
package killtest
