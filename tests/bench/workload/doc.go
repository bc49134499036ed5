// Package workload is the table of what the benchmarks measure: each workload is a
// value with what it needs to be there, what it asks of the server, and what the
// answers must be. The same workload runs against kube-apiserver, Triune in each of
// its layouts, and the floor; it cannot tell which one it is.
//
// A workload belongs to a group. The workloads of a group run one after another, in
// the order of the table, against one server that was started on fresh data for
// them; what one of them creates, the next may read. What a server does only once, its
// first calls, is measured on further starts, too: Workload.Start.
package workload
