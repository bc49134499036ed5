// Package workload is the table of the benchmarks: each workload has its preparation, its
// requests, and the expected responses. The same workload runs against kube-apiserver,
// Triune in each of its layouts, and the floor, without knowing which.
//
// A workload belongs to a group. The workloads of a group run one after another, in the
// order of the table, on one server that was started with fresh data; later ones may read
// what earlier ones created. First calls, which a server answers only once, are also
// measured on further starts: Workload.Start.
package workload
