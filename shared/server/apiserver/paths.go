package apiserver

import (
	"net/http"
	"slices"
	"strings"
)

// paths is the set of paths a tier owns. It is filled while the server is built
// and read-only afterwards.
type paths struct {
	exact    map[string]struct{}
	prefixes []string // each ends in a slash; sorted
	listed   []string // what "/" shows; sorted
	// documents are exact paths that may end in any number of slashes, as in
	// kube-apiserver, whose router for them drops those.
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

// canonical returns the path of the document that path stands for, or path.
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

// routable returns req as Echo is to route it. Echo routes by the encoded path where there
// is one; Kubernetes parses the decoded one, and whoever authorized this request has done so
// too. A method that Echo does not know finds no route, though each has all methods.
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

// routedMethods are the methods that each route has.
var routedMethods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions,
}

// owns tells whether path is one of the exact paths or lies below a prefix.
func (p *paths) owns(path string) bool {
	path = p.canonical(path)
	if _, ok := p.exact[path]; ok {
		return true
	}
	// A prefix of path sorts at or before path, but shorter ones may lie between
	// them, so look up each of path's own prefixes.
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
