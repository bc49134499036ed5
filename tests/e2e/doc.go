// Package e2e holds the end-to-end suite: real clients (kubectl, client-go, the
// Kubernetes controllers, Helm, extension servers) doing real work against a
// real server. The same test bodies run against every topology:
//
//	go test ./tests/e2e -target=triune          # the one process, the default
//	go test ./tests/e2e -target=tiers           # three tiers, two replicas each
//	go test ./tests/e2e -target=kube-apiserver  # the reference
//
// The reference target shows that the suite asks for nothing that Kubernetes
// does not do: a test that fails there is wrong. The environment's
// TRIUNE_TARGET replaces the flag's default.
//
// With -short only what needs no controllers and no large tools is run. With
// -disrupt every serving tier is killed with all of its replicas and started
// again once, in the middle of the suite.
//
// One server is shared by all tests of a run; a test has a namespace of its own
// and names its cluster-scoped objects after itself. Tests that stop servers for
// longer than a moment start a cluster for themselves.
package e2e
