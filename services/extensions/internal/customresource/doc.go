// Package customresource serves the objects of CustomResourceDefinitions under
// /apis/{group}/{version}.
//
// A request goes through three steps, each in a file of its own:
//
//   - lookup decides, from the request info and the table of definitions alone,
//     whether a definition answers the request (lookup.go).
//   - A definition's generation holds everything that serving it needs: schemas,
//     converters, storage and request scopes, built per version at the first
//     request that asks for it (generation.go, serving.go, version.go). A CRD
//     nobody asks for costs its row in the table and nothing else. Schemas, which
//     are most of it, come later still: when the first object is decoded, or
//     looked at (schemas.go), and validators when the first is written
//     (writing.go).
//   - verbs.go maps the request's verb to the handler of k8s.io/apiserver.
//
// An object that is read is seldom decoded: identity.go tells from its stored bytes
// that decoding and encoding would give them back.
//
// The table is an immutable map behind an atomic pointer: readers take no lock
// and routes never change while serving. When the spec or the accepted names of
// a CRD change, its row gets a new generation and the old one is retired: it
// refuses new requests, lets the running ones finish, ends its watches and then
// destroys its storage. Clients restart a watch that ended, as they do with
// kube-apiserver.
//
// Ordering: a generation is retired only after its successor is visible, so a
// request that meets a retired generation looks again and finds the newer one.
package customresource
