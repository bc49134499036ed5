// Package bench measures Triune beside kube-apiserver: it starts each of them in
// turn on fresh data, with the same flags, certificates, rules and content, runs the
// workloads of package workload against them, and writes what it has found out.
//
// Rounds are interleaved (A B A B), so that what else the machine does falls on all
// of them, and so are further starts, on which first calls are made again. Processor
// time is counted for each process apart, by the kernel. What fails has no figure:
// neither a server that does not start, nor a workload with one wrong answer in one of
// its rounds or starts.
//
// Reproduce with: make bench, make bench-quick, make bench WORKLOAD=<pattern>.
package bench
