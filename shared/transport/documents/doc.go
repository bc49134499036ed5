// Package documents gets documents from other tiers and extension servers that this tier merges:
// discovery and OpenAPI.
//
// [Document] sends a [Query] through a [Getter]; [Handler] makes a Getter of a handler in this
// process. All of them are safe for concurrent use.
//
// Such documents rarely change and are fetched often, so every request is conditional: it
// carries the [Tag] of the last answer. An answer with the same content is recognized even if
// the server does not support ETags.
package documents
