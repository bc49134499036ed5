// Package standalone is triune, the whole chain in one process. [Command] is the program.
//
// The three tiers are the same code as the three services. Here each calls the handler of
// the next, and their informers call that of the first. Unless flags name others, an etcd
// and a NATS run inside the process. Keys, certificates and the kubeconfig of an
// administrator are made in the data directory if no flags give them.
//
// With --etcd-servers and kube-apiserver's flags, triune replaces kube-apiserver.
//
// The order of use is [NewOptions], AddFlags, parse, Complete, Validate, [New] and Run, once
// each.
package standalone
