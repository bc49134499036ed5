// Package e2e holds the end-to-end suite: real clients (kubectl, client-go, the
// Kubernetes controllers, Helm, extension servers) doing real work against a
// real server. The same test bodies run against every topology:
//
//	go test ./tests/e2e -target=triune          # the one process, the default
//	go test ./tests/e2e -target=tiers           # three tiers, two replicas each
//	go test ./tests/e2e -target=kube-apiserver  # the reference
//	go test ./tests/e2e -target=external -kubeconfig=admin.kubeconfig
//
// With -flags=production (or production-max-in-flight) every server gets what the
// manifests of production clusters turn on, and with -external-etcd triune uses an etcd
// process as kube-apiserver does.
//
// The reference target shows that the suite asks for nothing that Kubernetes
// does not do: a test that fails there is wrong. The environment's
// TRIUNE_TARGET replaces the flag's default.
//
// The external target is a server that runs already, such as that of
// docker-compose.yml: tests that start, kill or configure servers of their own are
// left out, by name and with the reason (external_test.go). It is to be a new server:
// the suite leaves namespaces behind where no controller deletes them.
//
// With -short only what needs no controllers and no large tools is run. With
// -disrupt every serving tier is killed with all of its replicas and started
// again once, in the middle of the suite.
//
// One server is shared by all tests of a run; a test has a namespace of its own
// and names its cluster-scoped objects after itself. Tests that stop servers for
// longer than a moment start a cluster for themselves.
package e2e
