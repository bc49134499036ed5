// Package node runs a cluster with a real node: kubelet, containerd and kube-proxy in a network
// namespace of their own, beside an API server, kube-controller-manager and kube-scheduler.
//
// The API server listens on the host's end of a pair of interfaces, the node is at the other
// one, and the ranges of Pods and Services are routed from the host to the node. So the API
// server reaches Pods as it does in a cluster, and nothing leaves this machine.
//
// [Run] is all of that for a test. A test may add CoreDNS ([Node.RunDNS]) and images
// ([Node.Import]).
//
// [Missing] says what the machine lacks. [Start] makes everything in a directory and under a
// name of its own, and [Node.Close] removes it; [Sweep] removes what a killed run has left.
package node
