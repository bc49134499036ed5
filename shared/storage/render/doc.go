// Package render renders stored objects as the bytes that clients receive.
//
// kube-apiserver decodes a stored object, applies defaults, and encodes it in the version of
// the request. For most objects, in the version in which they are stored, the result is the
// stored bytes plus the resourceVersion, which is not stored. A [Version] determines once
// for each entry of the byte cache whether this is so. It does what kube-apiserver does and
// compares the results, unless the codec is a [Prover], which recognizes nearly all custom
// resources by their bytes. If the bytes are equal, the entry only gets a mark, and the
// resourceVersion is spliced into the stored bytes of each response. Otherwise the rendered
// object is cached, within the budget of the byte cache, as are the forms that are never
// stored: the JSON of built-in kinds, and partial metadata.
//
// [Labels] reads labels from the stored bytes without decoding the object, and [Fields] the
// selectable fields of built-in kinds. [Selectable] describes the positions of these fields;
// services/core has one for each resource with fields of its own. Objects whose bytes are
// ambiguous are decoded instead: a defaulted or repeated field, or another stored version.
//
// All types are safe for concurrent use.
package render
