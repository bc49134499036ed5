// Package bench compares Triune with kube-apiserver: it starts each of them in turn with
// fresh data and the same flags, certificates, rules and content, runs the workloads of
// package workload against them, and writes the results.
//
// Rounds are interleaved (A B A B), so that other load of the machine affects all of them,
// and so are further starts, which repeat first calls. The kernel counts the CPU time of
// each process. Failures have no figures: neither a server that does not start, nor a
// workload with a wrong answer in any of its rounds or starts.
//
// Reproduce with: make bench, make bench-quick, make bench WORKLOAD=<pattern>.
package bench
