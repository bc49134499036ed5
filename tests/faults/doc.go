// Package faults holds the tests with faults: servers are killed, paused and started again,
// and the event log is lost, while the answers to clients must remain correct.
//
// The servers run as processes, as in package e2e. The clients use raw HTTP, so that
// nothing is retried or hidden. Every test logs its seed; -seed repeats the random choices,
// but not the timing.
//
//   - Linearizability: [triune.dev/tests/faults/configmaps] exercises config maps
//     and [triune.dev/tests/faults/history] judges.
//   - Watches: [triune.dev/tests/faults/witness] writes, watches, resumes, and
//     compares.
package faults
