// Package load is the load generator of the benchmarks: requests over HTTP/2
// connections of its own, in a closed loop or at a rate, and watches whose events
// are counted and compared with what was written.
//
// It never decodes a body. Of each answer the status and the size are checked, of
// each watch event the type and the resource version are found in the bytes, so
// that its own processor time stays small beside the server's, which shares the
// machine with it. One wrong answer ends a run with an error: there are no figures
// for work that failed.
package load
