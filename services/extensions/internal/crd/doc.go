// Package crd serves CustomResourceDefinitions and runs their controllers.
//
// [APIGroup] returns the storage of the API group. [NewControllers] makes upstream's
// controllers, which check the names of a CRD against those of others, establish it, check
// its schemas, and delete its objects before it is deleted itself. They need an informer
// and a client of CRDs, and access to the storage of custom resources. [Observe] calls an
// [Observer] for each change of a CRD.
package crd
