package apiserver

import (
	"net/http"
	"slices"
	"strings"
)

// paths is the set of paths that a tier owns. It is read-only after Prepare.
type paths struct {
	exact    map[string]struct{}
	prefixes []string // each ends in a slash; sorted
	listed   []string // at "/"; sorted
	// documents are exact paths that also match with any number of trailing slashes, because
	// the router of kube-apiserver for these paths removes them.
	documents map[string]struct{}
}

func (p *paths) addExact(path string) {
	if p.exact == nil {
		p.exact = map[string]struct{}{}
	}
	p.exact[path] = struct{}{}
}

func (p *paths) addDocument(path string) {
	if p.documents == nil {
		p.documents = map[string]struct{}{}
	}
	p.documents[path] = struct{}{}
}

func (p *paths) addPrefix(prefix string) {
	at, found := slices.BinarySearch(p.prefixes, prefix)
	if !found {
		p.prefixes = slices.Insert(p.prefixes, at, prefix)
	}
}

func (p *paths) list(path string) {
	at, found := slices.BinarySearch(p.listed, path)
	if !found {
		p.listed = slices.Insert(p.listed, at, path)
	}
}

// canonical returns the path of a document without trailing slashes, and other paths
// unchanged.
func (p *paths) canonical(path string) string {
	if !strings.HasSuffix(path, "//") {
		return path
	}
	trimmed := strings.TrimRight(path, "/")
	if _, ok := p.documents[trimmed]; ok {
		return trimmed
	}
	return path
}

// routable returns the request for Echo to route. Echo routes by the encoded path, if there
// is one, but authorization and Kubernetes use the decoded path. Echo finds no route for an
// unknown method, so such a request is routed as GET: every route has all methods.
func (p *paths) routable(req *http.Request) *http.Request {
	path, method := p.canonical(req.URL.Path), req.Method
	if !slices.Contains(routedMethods, method) {
		method = http.MethodGet
	}
	if req.URL.RawPath == "" && path == req.URL.Path && method == req.Method {
		return req
	}
	url := *req.URL
	url.Path, url.RawPath = path, ""
	clone := *req
	clone.URL, clone.Method = &url, method
	return &clone
}

// routedMethods are the methods of every route.
var routedMethods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions,
}

// owns reports whether path is one of the exact paths or has one of the prefixes.
func (p *paths) owns(path string) bool {
	path = p.canonical(path)
	if _, ok := p.exact[path]; ok {
		return true
	}
	// A binary search for path itself may find an unrelated prefix, so look up each of
	// path's own prefixes.
	for end := strings.IndexByte(path, '/'); end >= 0; {
		if _, ok := slices.BinarySearch(p.prefixes, path[:end+1]); ok {
			return true
		}
		next := strings.IndexByte(path[end+1:], '/')
		if next < 0 {
			return false
		}
		end += 1 + next
	}
	return false
}
