package merged

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"triune.dev/shared/server/openapi"
	"triune.dev/shared/transport/documents"
)

// Source is a server whose documents are merged.
type Source struct {
	// Name identifies the server. Its known documents are kept as long as a source of this name
	// exists.
	Name string
	// From fetches the documents to merge. Required.
	From documents.Getter
	// Handler serves the server's v3 documents to clients, whom this server has authorized.
	// Required.
	Handler http.Handler
	// GroupVersions are those to take from this server, and from no other. Nil takes everything
	// that no earlier source has.
	GroupVersions []schema.GroupVersion
	// Fresh is how long an answer is used without asking again; 0 means 200 ms.
	Fresh time.Duration
	// Patience is how long a request waits for a server that has not answered yet; 0 means one
	// second.
	Patience time.Duration
}

func (s Source) completed() Source {
	if s.Fresh == 0 {
		s.Fresh = 200 * time.Millisecond
	}
	if s.Patience == 0 {
		s.Patience = time.Second
	}
	return s
}

// knownPatience is how long a request waits for a server to confirm a known document.
const knownPatience = time.Second

func (s Source) patience() patience {
	return patience{known: min(knownPatience, s.Patience), unknown: s.Patience}
}

// covers returns the v3 paths and v2 prefixes of the source's group-versions.
func (s Source) covers() (paths map[string]bool, prefixes []string) {
	paths = map[string]bool{}
	for _, gv := range s.GroupVersions {
		root := "apis/" + gv.String()
		if gv.Group == "" {
			root = "api/" + gv.Version
		} else {
			paths["apis/"+gv.Group] = true
		}
		paths[root] = true
		prefixes = append(prefixes, "/"+root+"/")
	}
	return paths, prefixes
}

// server holds the known documents of a source.
type server struct {
	source Source // guarded by Documents.mu
	index  cached[index]
	v2     cached[compressed]
}

// index is a v3 index. It is absent if the server is older than KEP-2896.
type index struct {
	paths  map[string]openapi.IndexEntry
	absent bool
}

func newServer(source Source) *server {
	s := &server{source: source}
	s.index.fetch = func(ctx context.Context, known documents.Tag) (answer[index], error) {
		return fetchIndex(ctx, source, known)
	}
	s.v2.fetch = func(ctx context.Context, known documents.Tag) (answer[compressed], error) {
		return fetchV2(ctx, source, known)
	}
	return s
}

func fetchIndex(ctx context.Context, source Source, known documents.Tag) (answer[index], error) {
	got, err := documents.Document(ctx, source.From, documents.Query{Path: openapi.PathV3, Accept: "application/json", Known: known})
	switch {
	case errors.Is(err, documents.ErrNotFound):
		return answer[index]{value: index{absent: true}, changed: true}, nil
	case err != nil:
		logFailure(ctx, source.Name, err)
		return answer[index]{}, err
	case !got.Modified:
		return answer[index]{tag: got.Tag}, nil
	}
	var parsed openapi.Index
	if err := json.Unmarshal(got.Body, &parsed); err != nil {
		err = fmt.Errorf("parse the OpenAPI v3 index: %w", err)
		logFailure(ctx, source.Name, err)
		return answer[index]{}, err
	}
	if source.GroupVersions != nil {
		covered, _ := source.covers()
		maps.DeleteFunc(parsed.Paths, func(path string, _ openapi.IndexEntry) bool { return !covered[path] })
	}
	return answer[index]{value: index{paths: parsed.Paths}, tag: got.Tag, changed: true}, nil
}

func fetchV2(ctx context.Context, source Source, known documents.Tag) (answer[compressed], error) {
	got, err := documents.Document(ctx, source.From, documents.Query{Path: openapi.PathV2, Accept: "application/json", Known: known})
	switch {
	case errors.Is(err, documents.ErrNotFound):
		// Treat a missing document as one without paths.
		return answer[compressed]{value: compressed{}, changed: true}, nil
	case err != nil:
		logFailure(ctx, source.Name, err)
		return answer[compressed]{}, err
	case !got.Modified:
		return answer[compressed]{tag: got.Tag}, nil
	}
	// Detect an invalid document now, and not while merging.
	if _, err := ParseSpec(got.Body); err != nil {
		logFailure(ctx, source.Name, err)
		return answer[compressed]{}, err
	}
	packed, err := compress(got.Body)
	if err != nil {
		return answer[compressed]{}, err
	}
	return answer[compressed]{value: packed, tag: got.Tag, changed: true}, nil
}

// converted returns the v3 document of one group-version, converted from v2. It lacks what v2
// cannot express (nullable, oneOf, …).
func converted(document compressed, gv schema.GroupVersion) ([]byte, error) {
	content, err := document.decompress()
	if err != nil {
		return nil, err
	}
	outline, err := ParseSpec(content)
	if err != nil {
		return nil, err
	}
	_, prefixes := Source{GroupVersions: []schema.GroupVersion{gv}}.covers()
	outline.Keep(prefixes)
	if content, err = outline.JSON(); err != nil {
		return nil, err
	}
	var swagger spec.Swagger
	if err := swagger.UnmarshalJSON(content); err != nil {
		return nil, fmt.Errorf("decode OpenAPI v2: %w", err)
	}
	return json.Marshal(openapiconv.ConvertV2ToV3(&swagger))
}

// compressed is a compressed document; the zero value is the empty document.
type compressed struct{ content []byte }

func compress(content []byte) (compressed, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return compressed{}, fmt.Errorf("compress OpenAPI document: %w", err)
	}
	if _, err := w.Write(content); err != nil {
		return compressed{}, fmt.Errorf("compress OpenAPI document: %w", err)
	}
	if err := w.Close(); err != nil {
		return compressed{}, fmt.Errorf("compress OpenAPI document: %w", err)
	}
	return compressed{content: bytes.Clone(out.Bytes())}, nil
}

func (z compressed) decompress() ([]byte, error) {
	if z.content == nil {
		return []byte(`{"swagger":"2.0","paths":{}}`), nil
	}
	r, err := gzip.NewReader(bytes.NewReader(z.content))
	if err != nil {
		return nil, fmt.Errorf("decompress OpenAPI document: %w", err)
	}
	content, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("decompress OpenAPI document: %w", err)
	}
	return content, nil
}
