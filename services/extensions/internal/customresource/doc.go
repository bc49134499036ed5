// Package customresource serves the objects of CustomResourceDefinitions under
// /apis/{group}/{version}. [New] makes a [Handler] of a [Config]; Put and Remove update its
// CRDs while it serves requests.
//
// A request takes three steps, each with files of its own:
//
//   - lookup finds the CRD of the request, from the request info and the table of CRDs
//     (lookup.go).
//   - The generation of the CRD holds everything that serves it: schemas, converters,
//     storage and request scopes (generation.go, serving.go, version.go). They are made for
//     a version at its first request, so an unused CRD costs only its row in the table.
//     Schemas, the largest part, are made when the first object is decoded (schemas.go),
//     and validators when the first is written (writing.go).
//   - verbs maps the verb of the request to a handler of k8s.io/apiserver (verbs.go).
//
// Most reads decode nothing: identity.go checks whether decoding and encoding would return
// the stored bytes unchanged.
//
// The table is an immutable map behind an atomic pointer, so readers take no lock. When the
// spec or the accepted names of a CRD change, its row gets a new generation and the old one
// is retired: it refuses new requests, waits for those in flight, ends its watches and
// destroys its storage. As with kube-apiserver, clients restart their watches.
//
// A generation is retired only after its successor is visible, so a request that finds a
// retired generation looks up the CRD again and finds a newer one.
package customresource
