// Package pki makes and renews the certificates, keys and kubeconfigs of a Triune
// installation in one directory.
//
// [Ensure] returns the files of a directory as a [PKI] and may be called on every start. It
// keeps correct files, makes missing ones, and issues leaves again, for their keys, that are
// close to expiry or lack a wanted name. It never overwrites a file with wrong content (a key
// of another certificate, a leaf of another authority, no PEM), which may be the only copy
// of something: it then returns an error of one line and changes nothing.
//
// The layout is similar to kubeadm's:
//
//	ca.{crt,key}                  cluster CA: serving and client certificates
//	front-proxy-ca.{crt,key}      the only CA of front proxies, which assert users
//	front-proxy/<tier>.{crt,key}  client certificate of a tier for the others
//	front-proxy-client.{crt,key}  client certificate of triune for extension API
//	                              servers, or of a front proxy
//	<tier>.{crt,key}              serving certificate of a tier
//	admin.{crt,key}               kubernetes-admin, group system:masters
//	controller-manager.{crt,key}  system:kube-controller-manager
//	scheduler.{crt,key}           system:kube-scheduler
//	<name>.{crt,key}              additional clients of Options
//	sa.{key,pub}                  signs and verifies ServiceAccount tokens
//	etcd/{ca,server,client}.*     etcd, with an authority of its own
//	nats/{ca,server,client}.*     NATS, with an authority of its own
//
// The front-proxy CA is not the client CA: the holder of one of its certificates may name
// any user, so no ordinary client certificate may be accepted as one. For the same reason
// serving certificates have only the extended key usage for servers, and client certificates
// only that for clients.
//
// [PKI.Share] copies a few of the files to another directory, for a program that must not
// read the others.
//
// All keys are ECDSA P-256, which are generated in microseconds. Package secrets keeps the
// same files in Secrets of a cluster; [NewKey] and [Sign] are for it and for other
// certificates.
package pki
