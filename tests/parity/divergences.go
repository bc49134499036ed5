package parity

import (
	"encoding/json"
	"maps"
	"strings"

	"triune.dev/tests/cluster"
)

// expected returns the answer that Triune should give instead of kube-apiserver's, by
// docs/divergences.md. Everything else must be equal. Parts that it removes are removed
// from both answers.
func expected(tested cluster.Topology, r Request, reference Normal) Normal {
	switch {
	case reference.Code == 404 && reference.Body == "404 page not found\n":
		return unknownPath(r, reference)
	case r.Do == "GET /":
		return index(reference)
	case strings.HasSuffix(strings.TrimRight(r.Do, "/"), " /version"):
		return version(reference)
	case strings.HasSuffix(r.Do, "/kube-system/configmaps") && tested == cluster.Tiers:
		return trusting(reference)
	}
	return reference
}

// trusting changes the configuration by which extension API servers trust front proxies: if
// the aggregator is a process with its own certificate, it is trusted, too.
func trusting(n Normal) Normal {
	const names, more = "[\"front-proxy-client\"]", "[\"front-proxy-client\",\"system:triune:aggregator\"]"
	body, _ := n.Body.(map[string]any)
	items, _ := body["items"].([]any)
	for _, item := range items {
		object, _ := item.(map[string]any)
		if data, _ := object["data"].(map[string]any); data["requestheader-allowed-names"] == names {
			data["requestheader-allowed-names"] = more
		}
	}
	return n
}

// unknownPath is the answer for a path that no tier knows. kube-apiserver answers some of
// them with plain text; the last tier always answers with a Status, so that clients can
// read it, and so that answers do not depend on the number of tiers.
func unknownPath(r Request, reference Normal) Normal {
	out := reference
	out.Header = maps.Clone(reference.Header)
	mediaType := "application/json"
	if r.Headers["Accept"] == "application/yaml" {
		mediaType = "application/yaml"
	}
	out.Header["Content-Type"] = []string{mediaType}
	delete(out.Header, "X-Content-Type-Options")
	out.Body = map[string]any{
		"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{},
		"status": "Failure", "reason": "NotFound", "code": json.Number("404"),
		"message": unknownPathMessage,
		"details": map[string]any{},
	}
	return out
}

const unknownPathMessage = "the server could not find the requested resource"

// index is the list of paths without health checks, which differ between servers, and
// without the groups that other cases create meanwhile.
func index(n Normal) Normal {
	body, ok := n.Body.(map[string]any)
	if !ok {
		return n
	}
	paths, ok := body["paths"].([]any)
	if !ok {
		return n
	}
	kept := []any{}
	for _, path := range paths {
		name, _ := path.(string)
		if !ownPath(name) {
			kept = append(kept, path)
		}
	}
	n.Body = map[string]any{"paths": kept}
	return n
}

// ownPath reports whether a listed path may exist on only one of the servers.
func ownPath(path string) bool {
	if strings.HasPrefix(path, "/apis/case-") {
		return true
	}
	for _, prefix := range []string{"/healthz/", "/livez/", "/readyz/"} {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}

// version removes the commit: kube-apiserver's is a placeholder that its build did not
// replace, and Triune has no commit of Kubernetes.
func version(n Normal) Normal {
	if body, ok := n.Body.(map[string]any); ok {
		body = maps.Clone(body)
		delete(body, "gitCommit")
		n.Body = body
	}
	return n
}
