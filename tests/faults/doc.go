// Package faults holds the tests that break things: servers are killed, stopped
// in their tracks and started again, the event log is lost, and what clients were
// told meanwhile has to be right all the same.
//
// The servers run as processes, as in package e2e; the clients are raw HTTP, so
// that nothing is repeated or hidden. Every test says with which seed it ran, and
// -seed repeats the choices, though not the timing.
//
//   - Linearizability: [triune.dev/tests/faults/configmaps] exercises config maps
//     and [triune.dev/tests/faults/history] judges.
//   - Watches: [triune.dev/tests/faults/witness] writes, watches, resumes, and
//     compares.
package faults
