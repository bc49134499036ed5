// Package crd serves CustomResourceDefinitions themselves and runs the
// controllers that turn a CRD that was written into one that is served: names are
// checked against those of other CRDs, the CRD becomes established, its schema is
// judged, and when it is deleted its objects are deleted first.
//
// The controllers are upstream's. What they need of the server is small: a client
// of this API, an informer on it, and access to the storage of custom resources.
package crd
