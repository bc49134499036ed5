// Package launchers has tools start the server under test as they start kube-apiserver:
// controller-runtime's envtest, kubeadm and kwokctl, each the real one. They find triune under
// the name kube-apiserver.
//
//	go test ./tests/launchers -target=triune          # the default
//	go test ./tests/launchers -target=kube-apiserver  # checks the tests themselves
package launchers
