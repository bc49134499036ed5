package merged

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"triune.dev/shared/server/openapi"
)

// Documents serves the merged documents. It is safe for concurrent use.
type Documents struct {
	started time.Time
	fetches *fetches
	// merged serves the documents built here: v2, and v3 of servers that have only v2.
	merged *openapi.Documents

	mu          sync.Mutex
	servers     []*server // in order of precedence
	v2Tag       string
	converted   map[string]string // v3 path → tag of the v2 document that it was converted from
	mergedIndex *mergedIndex
}

// mergedIndex is the merged v3 index, with the owner of each path.
type mergedIndex struct {
	versions []int // of the indexes and documents that it was made from
	owner    map[string]http.Handler
	content  []byte
	etag     string
}

// NewDocuments returns the merged documents of sources; earlier sources have precedence.
func NewDocuments(sources ...Source) *Documents {
	d := &Documents{
		started:   time.Now(),
		fetches:   newFetches(),
		merged:    openapi.NewDocuments(),
		converted: map[string]string{},
	}
	d.SetSources(sources)
	return d
}

// Close cancels the requests to servers and waits for them. Documents that are known are still
// served.
func (d *Documents) Close() { d.fetches.close() }

// SetSources replaces the sources. The known documents of a source are kept if the old one has
// the same name and group-versions; the source is asked again on the next request.
func (d *Documents) SetSources(sources []Source) {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := make(map[string]*server, len(d.servers))
	for _, s := range d.servers {
		known[s.source.Name] = s
	}
	next := make([]*server, 0, len(sources))
	for _, source := range sources {
		source = source.completed()
		made := newServer(source)
		if old := known[source.Name]; old != nil && slices.Equal(old.source.GroupVersions, source.GroupVersions) {
			made.inherit(old)
		}
		next = append(next, made)
	}
	d.servers, d.mergedIndex = next, nil
}

// inherit copies the known documents of another server.
func (s *server) inherit(from *server) {
	from.index.mu.Lock()
	s.index.value, s.index.tag, s.index.known, s.index.version = from.index.value, from.index.tag, from.index.known, from.index.version
	from.index.mu.Unlock()
	from.v2.mu.Lock()
	s.v2.value, s.v2.tag, s.v2.known, s.v2.version = from.v2.value, from.v2.tag, from.v2.known, from.v2.version
	from.v2.mu.Unlock()
}

// Forget makes the next request ask a source again, even after a failure.
func (d *Documents) Forget(name string) {
	for _, s := range d.current() {
		if s.source.Name == name {
			s.index.forget()
			s.v2.forget()
		}
	}
}

func (d *Documents) current() []*server {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.servers
}

// ServeHTTP serves /openapi/v2, /openapi/v3 and everything below.
func (d *Documents) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch path := req.URL.Path; {
	case path == openapi.PathV2:
		d.ServeV2(w, req)
	case path == openapi.PathV3:
		d.ServeIndex(w, req)
	case strings.HasPrefix(path, openapi.PathV3+"/"):
		d.ServeV3(w, req)
	default:
		http.NotFound(w, req)
	}
}

// ServeIndex serves the index of all v3 documents.
func (d *Documents) ServeIndex(w http.ResponseWriter, req *http.Request) {
	j, err := d.join(req.Context())
	if err != nil {
		klog.FromContext(req.Context()).Error(err, "openapi v3 indexes could not be joined")
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Etag", j.etag)
	w.Header().Set("Content-Type", "application/json")
	http.ServeContent(w, req, openapi.PathV3, d.started, bytes.NewReader(j.content))
}

// ServeV3 passes a request for a document to the server that owns it.
func (d *Documents) ServeV3(w http.ResponseWriter, req *http.Request) {
	j, err := d.join(req.Context())
	if err != nil {
		klog.FromContext(req.Context()).Error(err, "openapi v3 indexes could not be joined")
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	owner := j.owner[strings.TrimPrefix(req.URL.Path, openapi.PathV3+"/")]
	if owner == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	owner.ServeHTTP(w, req)
}

// ServeV2 serves the merged v2 document.
func (d *Documents) ServeV2(w http.ResponseWriter, req *http.Request) {
	d.compose(req.Context())
	d.merged.ServeV2(w, req)
}

// join returns the merged index. It asks every server whose last answer is too old.
func (d *Documents) join(ctx context.Context) (*mergedIndex, error) {
	servers := d.current()
	indexes := each(servers, func(s *server) snapshot[index] {
		return s.index.get(ctx, d.fetches, s.source.Fresh, s.source.patience())
	})
	versions := make([]int, len(indexes))
	for i := range indexes {
		versions[i] = indexes[i].version
	}

	// The v2 document of an older server must be known before it can be converted to v3.
	for i, s := range servers {
		if indexes[i].value.absent && s.source.GroupVersions != nil {
			document := s.v2.get(ctx, d.fetches, s.source.Fresh, s.source.patience())
			versions = append(versions, document.version)
			indexes[i].value.paths = d.convert(s.source, document)
		}
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	current := slices.Equal(d.servers, servers)
	if current && d.mergedIndex != nil && slices.Equal(d.mergedIndex.versions, versions) {
		return d.mergedIndex, nil
	}
	j, err := d.joinIndexes(servers, indexes)
	if err != nil {
		return nil, err
	}
	j.versions = versions
	if current {
		d.mergedIndex = j
	}
	return j, nil
}

func (d *Documents) joinIndexes(servers []*server, indexes []snapshot[index]) (*mergedIndex, error) {
	all := openapi.Index{Paths: map[string]openapi.IndexEntry{}}
	owner := map[string]http.Handler{}
	add := func(i int, wanted func(path string) bool) {
		handler := servers[i].source.Handler
		if indexes[i].value.absent {
			handler = d.merged
		}
		for path, entry := range indexes[i].value.paths {
			if _, taken := owner[path]; !taken && wanted(path) {
				all.Paths[path], owner[path] = entry, handler
			}
		}
	}
	// The group-versions that a source claims belong to it regardless of precedence. The
	// document of a group does not, because several servers may serve versions of the group.
	for i, s := range servers {
		if s.source.GroupVersions != nil {
			add(i, func(path string) bool { return strings.Count(path, "/") != 1 || strings.HasPrefix(path, "api/") })
		}
	}
	for i := range servers {
		add(i, func(string) bool { return true })
	}
	content, err := json.Marshal(all)
	if err != nil {
		return nil, fmt.Errorf("encode the OpenAPI v3 index: %w", err)
	}
	return &mergedIndex{owner: owner, content: content, etag: strconv.Quote(hashOf(content))}, nil
}

// convert registers v3 documents that are converted from a source's v2 on demand, and returns
// their index.
func (d *Documents) convert(source Source, document snapshot[compressed]) map[string]openapi.IndexEntry {
	if !document.known || document.value.content == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	paths := map[string]openapi.IndexEntry{}
	tag := hashOf(document.value.content)
	for _, gv := range source.GroupVersions {
		path := "apis/" + gv.String()
		if d.converted[path] != tag {
			d.merged.SetV3(path, openapi.Source{Tag: tag, Build: func() ([]byte, error) { return converted(document.value, gv) }})
			d.converted[path] = tag
		}
		paths[path] = openapi.IndexEntry{ServerRelativeURL: openapi.PathV3 + "/" + path + "?hash=" + tag}
	}
	return paths
}

// compose updates the merged v2 document, which is built when it is sent.
func (d *Documents) compose(ctx context.Context) {
	servers := d.current()
	documents := each(servers, func(s *server) snapshot[compressed] {
		return s.v2.get(ctx, d.fetches, s.source.Fresh, s.source.patience())
	})
	var parts []part
	hash := sha512.New()
	for i, s := range servers {
		if !documents[i].known || documents[i].value.content == nil {
			continue
		}
		parts = append(parts, part{source: s.source, document: documents[i].value})
		fmt.Fprintf(hash, "%s %v %X\n", s.source.Name, s.source.GroupVersions, sha512.Sum512(documents[i].value.content))
	}
	if len(parts) == 0 {
		return
	}
	tag := fmt.Sprintf("%X", hash.Sum(nil))
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.v2Tag == tag {
		return
	}
	d.v2Tag = tag
	d.merged.SetV2(openapi.Source{Tag: tag, Build: func() ([]byte, error) { return mergeV2(parts) }})
}

type part struct {
	source   Source
	document compressed
}

// mergeV2 merges documents. A part that cannot be merged is left out, so that it does not
// affect the others.
func mergeV2(parts []part) ([]byte, error) {
	var claimed []string
	for _, p := range parts {
		_, prefixes := p.source.covers()
		claimed = append(claimed, prefixes...)
	}
	var whole *Spec
	for _, p := range parts {
		content, err := p.document.decompress()
		if err != nil {
			return nil, err
		}
		outline, err := ParseSpec(content)
		if err != nil {
			return nil, err
		}
		if p.source.GroupVersions != nil {
			_, prefixes := p.source.covers()
			outline.Keep(prefixes)
		} else if len(claimed) > 0 {
			outline.keep(func(path string) bool {
				return !slices.ContainsFunc(claimed, func(prefix string) bool { return strings.HasPrefix(path, prefix) })
			})
		}
		if whole == nil {
			whole = outline
			continue
		}
		if err := whole.Splice(outline); err != nil {
			klog.Background().Error(err, "openapi v2 of a server is left out", "source", p.source.Name)
		}
	}
	return whole.JSON()
}

// each calls f for all servers concurrently and returns the results in the order of the
// servers.
func each[T any](servers []*server, f func(*server) T) []T {
	results := make([]T, len(servers))
	var running sync.WaitGroup
	for i, s := range servers {
		running.Go(func() { results[i] = f(s) })
	}
	running.Wait()
	return results
}

func hashOf(content []byte) string { return fmt.Sprintf("%X", sha512.Sum512(content)) }
