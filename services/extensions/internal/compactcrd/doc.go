// Package compactcrd keeps CustomResourceDefinitions small in memory.
//
// A schema of 20 kB takes 440 kB once it is decoded. Every request for a custom resource
// reads its CRD, but only a few need the schemas: to decode or write the first object, and
// for OpenAPI. So the informer of the extensions tier stores compact CRDs.
//
// [Compact] makes a CRD compact: it compresses the schemas and long annotations in place
// and drops the managed fields. [Expand] returns a CRD with its schemas, and
// [WithoutSchemas] one that lacks them. All three may be called concurrently; only Compact
// changes its argument.
//
// A compact CRD must not leave the process. [Client] removes the schemas from what the
// controllers write; the server ignores the spec when it updates the status.
package compactcrd
