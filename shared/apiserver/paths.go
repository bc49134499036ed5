package apiserver

import (
	"slices"
	"strings"
)

// paths is the set of paths a tier owns. It is filled while the server is built
// and read-only afterwards.
type paths struct {
	exact    map[string]struct{}
	prefixes []string // each ends in a slash; sorted
	listed   []string // what "/" shows; sorted
}

func (p *paths) addExact(path string) {
	if p.exact == nil {
		p.exact = map[string]struct{}{}
	}
	p.exact[path] = struct{}{}
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

// owns tells whether path is one of the exact paths or lies below a prefix.
func (p *paths) owns(path string) bool {
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
