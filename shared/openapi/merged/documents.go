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

	"triune.dev/shared/openapi"
)

// Documents serves the merged documents. It is safe for concurrent use.
type Documents struct {
	started   time.Time
	questions *questions
	// merged serves what is made here: v2, and v3 of servers that have only v2.
	merged *openapi.Documents

	mu        sync.Mutex
	servers   []*server // in the order of precedence
	v2Tag     string
	converted map[string]string // v3 path → tag of what it was made of
	joined    *joined
}

// joined is the merged v3 index and who answers for its paths.
type joined struct {
	versions []int // of the sources' indexes it was made of
	owner    map[string]http.Handler
	content  []byte
	etag     string
}

// NewDocuments returns Documents over sources; earlier ones have precedence.
func NewDocuments(sources ...Source) *Documents {
	d := &Documents{
		started:   time.Now(),
		questions: newQuestions(),
		merged:    openapi.NewDocuments(),
		converted: map[string]string{},
	}
	d.SetSources(sources)
	return d
}

// Close ends the questions under way and waits for them. Documents that are known
// can still be served.
func (d *Documents) Close() { d.questions.close() }

// SetSources replaces the sources. What is known of a source is kept if there is
// one of the same name for the same group-versions; it is asked again at the next
// request.
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
	d.servers, d.joined = next, nil
}

// inherit takes over what another server knows.
func (s *server) inherit(from *server) {
	from.index.mu.Lock()
	s.index.value, s.index.tag, s.index.known, s.index.version = from.index.value, from.index.tag, from.index.known, from.index.version
	from.index.mu.Unlock()
	from.v2.mu.Lock()
	s.v2.value, s.v2.tag, s.v2.known, s.v2.version = from.v2.value, from.v2.tag, from.v2.known, from.v2.version
	from.v2.mu.Unlock()
}

// Forget has a source asked at the next request whatever was known or failed.
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

// ServeHTTP answers GET for /openapi/v2, /openapi/v3 and everything below.
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

// ServeIndex answers with the index of all v3 documents.
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

// ServeV3 has a document answered by the server whose it is.
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

// ServeV2 answers with the one v2 document.
func (d *Documents) ServeV2(w http.ResponseWriter, req *http.Request) {
	d.compose(req.Context())
	d.merged.ServeV2(w, req)
}

// join returns the merged index, asking every server that was not asked just now.
func (d *Documents) join(ctx context.Context) (*joined, error) {
	servers := d.current()
	indexes := each(servers, func(s *server) seen[index] {
		return s.index.get(ctx, d.questions, s.source.Fresh, s.source.patience())
	})
	versions := make([]int, len(indexes))
	for i := range indexes {
		versions[i] = indexes[i].version
	}

	// An older server's v2 must be known before its v3 can be made of it.
	for i, s := range servers {
		if indexes[i].value.absent && s.source.GroupVersions != nil {
			document := s.v2.get(ctx, d.questions, s.source.Fresh, s.source.patience())
			versions = append(versions, document.version)
			indexes[i].value.paths = d.convert(s.source, document)
		}
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	current := slices.Equal(d.servers, servers)
	if current && d.joined != nil && slices.Equal(d.joined.versions, versions) {
		return d.joined, nil
	}
	j, err := d.joinIndexes(servers, indexes)
	if err != nil {
		return nil, err
	}
	j.versions = versions
	if current {
		d.joined = j
	}
	return j, nil
}

func (d *Documents) joinIndexes(servers []*server, indexes []seen[index]) (*joined, error) {
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
	// Group-versions that a source claims are its own whatever its place. The
	// document of a group is not: several servers may have versions of a group.
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
	return &joined{owner: owner, content: content, etag: strconv.Quote(hashOf(content))}, nil
}

// convert makes v3 documents of a source's v2, when they are asked for, and
// returns their index.
func (d *Documents) convert(source Source, document seen[zipped]) map[string]openapi.IndexEntry {
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

// compose brings the merged v2 document up to date; it is built when it is sent.
func (d *Documents) compose(ctx context.Context) {
	servers := d.current()
	documents := each(servers, func(s *server) seen[zipped] {
		return s.v2.get(ctx, d.questions, s.source.Fresh, s.source.patience())
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
	document zipped
}

// mergeV2 makes one document of many. A part that does not fit is left out: it
// must not take away the others.
func mergeV2(parts []part) ([]byte, error) {
	var claimed []string
	for _, p := range parts {
		_, prefixes := p.source.covers()
		claimed = append(claimed, prefixes...)
	}
	var whole *Spec
	for _, p := range parts {
		content, err := p.document.unzip()
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

// each calls f for all servers at once and returns the results in their order.
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
