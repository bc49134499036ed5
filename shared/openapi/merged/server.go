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

	"triune.dev/shared/fetch"
	"triune.dev/shared/openapi"
)

// Source is a server whose documents are merged.
type Source struct {
	// Name identifies the server: what is known of it is kept for as long as there
	// is a source of this name.
	Name string
	// From asks the server for what is merged. Required.
	From fetch.Getter
	// Handler answers the request of a client, whom this server has authorized, for a
	// v3 document of that server. Required.
	Handler http.Handler
	// GroupVersions are what is taken from this server; they are then its alone.
	// Nil takes everything that no source before it has.
	GroupVersions []schema.GroupVersion
	// Fresh is how long an answer is good enough. Default 200 ms.
	Fresh time.Duration
	// Patience is how long a request waits for a server of which nothing is known
	// yet. Default one second.
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

// knownPatience is how long a request waits to hear whether what is known is
// still true.
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

// server is what is known of a source.
type server struct {
	source Source // guarded by Documents.mu
	index  watched[index]
	v2     watched[zipped]
}

// index is a v3 index. A server that has none is older than KEP-2896.
type index struct {
	paths  map[string]openapi.IndexEntry
	absent bool
}

func newServer(source Source) *server {
	s := &server{source: source}
	s.index.ask = func(ctx context.Context, known fetch.Tag) (answer[index], error) {
		return askIndex(ctx, source, known)
	}
	s.v2.ask = func(ctx context.Context, known fetch.Tag) (answer[zipped], error) {
		return askV2(ctx, source, known)
	}
	return s
}

func askIndex(ctx context.Context, source Source, known fetch.Tag) (answer[index], error) {
	got, err := fetch.Document(ctx, source.From, fetch.Query{Path: openapi.PathV3, Accept: "application/json", Known: known})
	switch {
	case errors.Is(err, fetch.ErrNotFound):
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

func askV2(ctx context.Context, source Source, known fetch.Tag) (answer[zipped], error) {
	got, err := fetch.Document(ctx, source.From, fetch.Query{Path: openapi.PathV2, Accept: "application/json", Known: known})
	switch {
	case errors.Is(err, fetch.ErrNotFound):
		// No document is a document without paths.
		return answer[zipped]{value: zipped{}, changed: true}, nil
	case err != nil:
		logFailure(ctx, source.Name, err)
		return answer[zipped]{}, err
	case !got.Modified:
		return answer[zipped]{tag: got.Tag}, nil
	}
	// An unreadable document is found out now, not when all are merged.
	if _, err := ParseSpec(got.Body); err != nil {
		logFailure(ctx, source.Name, err)
		return answer[zipped]{}, err
	}
	packed, err := zip(got.Body)
	if err != nil {
		return answer[zipped]{}, err
	}
	return answer[zipped]{value: packed, tag: got.Tag, changed: true}, nil
}

// converted returns the v3 document of one group-version, made of v2. What v2
// cannot say (nullable, oneOf, …) is missing from it.
func converted(document zipped, gv schema.GroupVersion) ([]byte, error) {
	content, err := document.unzip()
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

// zipped is a compressed document; its zero value is none.
type zipped struct{ content []byte }

func zip(content []byte) (zipped, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return zipped{}, fmt.Errorf("compress OpenAPI document: %w", err)
	}
	if _, err := w.Write(content); err != nil {
		return zipped{}, fmt.Errorf("compress OpenAPI document: %w", err)
	}
	if err := w.Close(); err != nil {
		return zipped{}, fmt.Errorf("compress OpenAPI document: %w", err)
	}
	return zipped{content: bytes.Clone(out.Bytes())}, nil
}

func (z zipped) unzip() ([]byte, error) {
	if z.content == nil {
		return []byte(`{"swagger":"2.0","paths":{}}`), nil
	}
	r, err := gzip.NewReader(bytes.NewReader(z.content))
	if err != nil {
		return nil, fmt.Errorf("uncompress OpenAPI document: %w", err)
	}
	content, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("uncompress OpenAPI document: %w", err)
	}
	return content, nil
}
