// Package fetch asks other tiers and extension servers for the documents that
// are merged over all of them: discovery and OpenAPI.
//
// Such a document rarely changes and is asked for often, so every question is a
// conditional one: it carries the tag of the last answer, and an answer that says
// nothing new is recognised even where the server knows no ETags.
package fetch
