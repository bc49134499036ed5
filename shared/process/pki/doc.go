// Package pki makes and keeps the certificates, keys and kubeconfigs of a Triune
// installation in one directory, without tools from outside.
//
// [Ensure] brings a directory to the wanted state and may be called on every
// start: what is there and right is left alone, what is missing is made, a leaf
// that is close to expiry or lacks a wanted name is issued again for the key it
// has. What is there and wrong (a key that does not belong to its certificate,
// a leaf of another authority, a file that is no PEM) is never overwritten: it
// may be the only copy of something, so Ensure says what is wrong in one line
// and changes nothing.
//
// The layout is the one kubeadm users know:
//
//	ca.{crt,key}                  cluster CA: serving and client certificates
//	front-proxy-ca.{crt,key}      the CA that alone may vouch for identity headers
//	front-proxy/<tier>.{crt,key}  what a tier shows to the others
//	front-proxy-client.{crt,key}  what triune shows to extension API servers, or
//	                              a proxy in front of it that authenticates users
//	<tier>.{crt,key}              serving certificate of a tier
//	admin.{crt,key}               kubernetes-admin, group system:masters
//	controller-manager.{crt,key}  system:kube-controller-manager
//	scheduler.{crt,key}           system:kube-scheduler
//	<name>.{crt,key}              identities the caller asked for
//	sa.{key,pub}                  signs and verifies ServiceAccount tokens
//	etcd/{ca,server,client}.*     etcd, with an authority of its own
//	nats/{ca,server,client}.*     NATS, with an authority of its own
//
// The front-proxy CA is not the client CA: a certificate of the first lets its
// holder name any user, so no ordinary client certificate may ever pass for one
// (DESIGN.md, invariant 8). For the same reason serving certificates carry the
// extended key usage for servers only, and client certificates for clients only.
//
// A program needs a few of these files and must not read the others: [PKI.Share]
// puts what it needs into a directory of its own.
//
// All keys are ECDSA P-256: generating and signing take microseconds, and the
// whole set is made in less time than a start of the server may cost.
package pki
