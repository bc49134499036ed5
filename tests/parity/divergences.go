package parity

import (
	"encoding/json"
	"maps"
)

// expected turns what kube-apiserver answers into what Triune promises to
// answer, where docs/divergences.md says that the two differ. Everything it does
// not name has to be equal.
func expected(reference Normal) Normal {
	if reference.Code == 404 && reference.Body == "404 page not found\n" {
		// A path that no tier knows: kube-apiserver answers some of them with a
		// plain page. The end of the chain always answers with a Status, so that
		// clients can read it, and a request that went through three tiers ends
		// like one that was answered by the first.
		out := reference
		out.Header = maps.Clone(reference.Header)
		out.Header["Content-Type"] = []string{"application/json"}
		delete(out.Header, "X-Content-Type-Options")
		out.Body = map[string]any{
			"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{},
			"status": "Failure", "reason": "NotFound", "code": json.Number("404"),
			"message": "the server could not find the requested resource",
			"details": map[string]any{},
		}
		return out
	}
	return reference
}
