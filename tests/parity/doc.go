// Package parity sends the same requests to kube-apiserver and to Triune, each
// on an etcd of its own, and expects the same answers: status code, headers and
// body, in which only what cannot be equal (uids, resource versions, times of
// this run, allocated addresses) is replaced by placeholders first.
//
// Requests are written down in testdata/*.yaml, see [Case]; those that follow
// from discovery (every method on every resource, every document of OpenAPI) are
// made by the tests. The normaliser must not hide what a client can see, such as
// null against an empty list or another order of a list; normalise_test.go
// proves that it does not.
//
// Admission webhooks are the same ones for both servers, written down in
// testdata/webhooks/*.yaml. What they are asked has to be the same, too.
//
//	go test ./tests/parity -target=triune          # the default
//	go test ./tests/parity -target=tiers
//	go test ./tests/parity -target=kube-apiserver  # two references: checks the suite itself
package parity
