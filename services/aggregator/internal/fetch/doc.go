// Package fetch asks other servers for the documents that the aggregator
// merges: discovery and OpenAPI.
//
// Such a document rarely changes and is asked for often, so every question is a
// conditional one: it carries the tag of the last answer, and an answer that says
// nothing new is recognised even where the server knows no ETags.
package fetch
