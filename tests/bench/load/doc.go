// Package load is the load generator of the benchmarks: requests over its own HTTP/2
// connections, in a closed loop or at a rate, and watches whose events are counted and
// compared with the writes.
//
// It never decodes a body. It checks status and size of each response, and finds the type
// and resource version of each watch event in its bytes, so that its CPU time stays small
// beside that of the server on the same machine. One wrong response ends a run with an
// error: there are no figures for failed work.
package load
