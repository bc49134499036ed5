// Package encoded turns stored bytes into the bytes that clients are sent.
//
// What kube-apiserver sends for an object is what is stored, decoded, defaulted,
// and encoded in the version of the request. For most objects, in the version that
// they are stored in, that is the stored bytes and the resourceVersion, which is
// not stored. A [Version] finds out once for each entry of the byte cache whether
// that is so: it does what kube-apiserver does and compares, unless the codec is a
// [Prover], which knows it of nearly all custom resources by looking. If it is so, nothing
// is kept but a mark, and the resourceVersion is spliced in whenever the object is
// sent; otherwise what was rendered is kept, as is what is never stored in that form
// (the JSON of built-in kinds, partial metadata), as long as the budget of the byte
// cache has room for it.
//
// Labels are read from the stored bytes without decoding the object, and so are the
// selectable fields of built-in kinds: [Selectable] says where they are, and
// services/core has one for each resource with fields of its own. What the bytes do not
// say plainly, a field that is defaulted, or repeated, or of another version, is left
// to decoding.
package encoded
