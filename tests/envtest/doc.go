// Package envtest runs controller-runtime's own tests, unchanged, on a server under test. They
// start their servers by envtest, from a directory with the programs etcd, kubectl and
// kube-apiserver; triune is there under the last name.
//
//	go test ./tests/envtest -target=triune          # the default
//	go test ./tests/envtest -target=kube-apiserver
package envtest
