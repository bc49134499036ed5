// Package secrets keeps the certificates and keys of a Triune installation in
// Secrets of the cluster that it runs in, by a list of those that are wanted.
//
// [Keeper.Ensure] may run at any time, and in several processes at once. Secrets that are
// right are kept. A leaf is issued again, with a new key, when two thirds of its life
// are over, when it lives longer than the list says, or says something else than the
// list. An authority is renewed at two thirds of its life with the same key, so that
// its leaves stay valid. A Secret that holds something wrong (a key of
// another certificate, a leaf of an unknown authority, no PEM) is reported and not
// overwritten, and keeps nothing else from being renewed.
//
// The Secret of an authority holds its key. Nobody mounts it: the certificate of the
// authority stands beside each leaf.
//
//	<prefix>-<authority>    tls.crt, tls.key of the authority; while it is replaced
//	                        next.crt, next.key or previous.crt as well
//	<prefix>-<certificate>  tls.crt, tls.key, and in ca.crt the certificates of its
//	                        authority; kubeconfig where the list names a server
//	<prefix>-<key>          tls.key, which signs ServiceAccount tokens
//
// An authority is replaced in three steps ([Rotation]), each of which every program has
// to have read before the next one: first everybody trusts the new authority, then it
// issues all leaves, then the old one is forgotten.
package secrets
