// Package e2e holds the end-to-end suite: real clients (kubectl, client-go, the
// Kubernetes controllers, Helm, extension servers) doing real work against a
// real server. The same test bodies run against every topology:
//
//	go test ./tests/e2e -target=triune          # the one process, the default
//	go test ./tests/e2e -target=tiers           # three tiers, two replicas each
//	go test ./tests/e2e -target=kube-apiserver  # the reference
//	go test ./tests/e2e -target=external -kubeconfig=admin.kubeconfig
//
// With -flags=production (or production-max-in-flight) every server gets the flags that
// manifests of production clusters set, and with -external-etcd triune uses an etcd process
// as kube-apiserver does.
//
// The reference target shows that the suite expects nothing that Kubernetes does not do: a
// test that fails there is wrong. The environment variable TRIUNE_TARGET replaces the
// flag's default.
//
// The external target is a running server, such as that of docker-compose.yml. Tests that
// start, kill or configure servers of their own are skipped, by name and with the reason
// (external_test.go). The server should be a new one: the suite leaves namespaces behind
// where no controller deletes them.
//
// With -short only tests run that need neither controllers nor large tools. With -disrupt
// every serving tier is killed with all of its replicas and started again once, in the
// middle of the suite.
//
// All tests of a run share one server; each has its own namespace and names its
// cluster-scoped objects after itself. Tests that stop servers for longer than a moment
// start their own cluster.
package e2e
