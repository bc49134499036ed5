// Package identity proves who is believed to be whom: each strategy of authentication and
// authorization with its real counterpart (OpenID Connect issuers, webhooks over HTTPS, an
// authenticating proxy, certificate authorities, kube-controller-manager), and with what
// is expired, forged, misdirected, or broken.
//
// kube-apiserver is started beside the servers under test, with the same flags and the
// same files, and both are asked the same. An answer is right if it is what the test says,
// in every tier, and what kube-apiserver answers.
//
//	go test ./tests/identity -target=triune          # the default
//	go test ./tests/identity -target=tiers -replicas=2
//	go test ./tests/identity -target=kube-apiserver  # two references: checks the suite itself
package identity
