// Package identity tests who is authenticated and authorized: each strategy with its real
// counterpart (OpenID Connect issuers, webhooks over HTTPS, an authenticating proxy,
// certificate authorities, kube-controller-manager), and with credentials that are expired,
// forged, misdirected or broken.
//
// kube-apiserver runs beside the servers under test, with the same flags and files, and
// gets the same requests. An answer is right if it is the expected one, in every tier,
// and equals kube-apiserver's.
//
//	go test ./tests/identity -target=triune          # the default
//	go test ./tests/identity -target=tiers -replicas=2
//	go test ./tests/identity -target=kube-apiserver  # two references: checks the suite itself
package identity
