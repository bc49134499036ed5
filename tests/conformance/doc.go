// Package conformance tests Triune with public test suites: our implementations of protocols
// with those of the protocols, and the whole with Kubernetes' own end-to-end tests, on a
// node of package node.
package conformance
