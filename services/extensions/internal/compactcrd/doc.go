// Package compactcrd keeps CustomResourceDefinitions small while nobody needs their
// schemas.
//
// A schema of 20 kB is 440 kB of Go values once it is decoded, and a definition is
// looked at in every request while its schemas are needed by few: when the first
// object is decoded or written, and for OpenAPI. So the informer holds outlines. An
// outline is the definition with its schemas and long annotations compressed in their
// places and without managed fields; [Whole] has the schemas again.
//
// An outline must not leave the process: [Client] writes what the controllers have
// made of one without its schemas, which a write of the status ignores.
package compactcrd
