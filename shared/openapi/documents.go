package openapi

import (
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"path"
	"sync"
	"time"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"
)

// The paths under which documents are served.
const (
	PathV2 = "/openapi/v2"
	PathV3 = "/openapi/v3"
)

// Source makes a document.
type Source struct {
	// Tag changes whenever the document would; it becomes its ETag and, in v3, the
	// hash in its URL. Empty means the hash of the document itself, for which it
	// must be built as soon as somebody asks for the index.
	Tag string
	// Build returns the document in JSON. Two calls return the same. It may be
	// called by any goroutine.
	Build func() ([]byte, error)
}

// Documents serves the OpenAPI documents of a tier over HTTP. Sources can be
// added, replaced and removed while it serves.
type Documents struct {
	started time.Time

	mu    sync.Mutex
	v2    *document
	v3    map[string]*document // by path below PathV3: "apis/apps/v1"
	index *document            // nil after a change
}

// NewDocuments returns a Documents that serves nothing.
func NewDocuments() *Documents {
	return &Documents{started: time.Now(), v3: map[string]*document{}}
}

// SetV2 sets the v2 document.
func (d *Documents) SetV2(source Source) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.v2 = newDocument(source, protoV2)
}

// SetV3 sets the v3 document of a path such as "apis/apps/v1".
func (d *Documents) SetV3(path string, source Source) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.v3[path] = newDocument(source, protoV3)
	d.index = nil
}

// DeleteV3 removes the v3 document of a path.
func (d *Documents) DeleteV3(path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.v3, path)
	d.index = nil
}

func (d *Documents) documentV2() *document {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.v2
}

func (d *Documents) documentV3(path string) *document {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.v3[path]
}

// indexV3 is the list of all v3 documents with their hashes. It holds no lock
// while documents are built for their hashes; when the documents change
// meanwhile, the index of before the change is returned and not kept.
func (d *Documents) indexV3() *document {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.index == nil {
		of := maps.Clone(d.v3)
		d.index = newDocument(Source{Build: func() ([]byte, error) { return buildIndex(of) }}, nil)
	}
	return d.index
}

// Index is the v3 index (KEP-2896): the URL of every document, by its path.
type Index struct {
	Paths map[string]IndexEntry `json:"paths"`
}

// IndexEntry says where a document is. The URL changes when the document does, so
// what was once fetched from it stays true.
type IndexEntry struct {
	ServerRelativeURL string `json:"serverRelativeURL"`
}

func buildIndex(documents map[string]*document) ([]byte, error) {
	index := Index{Paths: make(map[string]IndexEntry, len(documents))}
	for path, document := range documents {
		tag, err := document.tag()
		if err != nil {
			// One document that cannot be built must not take away all others.
			klog.ErrorS(err, "leaving a document out of the openapi index", "path", path)
			continue
		}
		index.Paths[path] = IndexEntry{ServerRelativeURL: urlV3(path, tag)}
	}
	return json.Marshal(index)
}

func urlV3(document, tag string) string {
	at := url.URL{Path: path.Join(PathV3, document), RawQuery: url.Values{"hash": {tag}}.Encode()}
	return at.String()
}

// document is one document and what has been made of it so far.
type document struct {
	source  Source
	toProto func(json []byte) ([]byte, error)

	mu      sync.Mutex
	hash    string
	encoded map[encoding]packed
}

// encoding is a form in which a document is served.
type encoding int

const (
	inJSON encoding = iota
	inProtobuf
)

func newDocument(source Source, toProto func([]byte) ([]byte, error)) *document {
	return &document{source: source, toProto: toProto, hash: source.Tag, encoded: map[encoding]packed{}}
}

// tag returns the hash of the document, which it builds if it has to. It does not
// keep what it has built: who asks for the index wants one or two of its documents,
// not all.
func (d *document) tag() (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hash == "" {
		if _, err := d.jsonLocked(); err != nil {
			return "", err
		}
	}
	return d.hash, nil
}

// knownTag returns the hash of the document if it is known without building it.
func (d *document) knownTag() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hash
}

// get returns the document in an encoding, and its hash.
func (d *document) get(as encoding) (packed, string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.packLocked(as)
	return p, d.hash, err
}

func (d *document) packLocked(as encoding) (packed, error) {
	if p, ok := d.encoded[as]; ok {
		return p, nil
	}
	content, err := d.jsonLocked()
	if err != nil {
		return packed{}, err
	}
	if as == inProtobuf {
		if content, err = d.toProto(content); err != nil {
			return packed{}, fmt.Errorf("convert OpenAPI document to protobuf: %w", err)
		}
	}
	p, err := pack(content)
	if err != nil {
		return packed{}, err
	}
	d.encoded[as] = p
	return p, nil
}

// jsonLocked returns the document in JSON, be it from its compressed form or from
// its source.
func (d *document) jsonLocked() ([]byte, error) {
	if p, ok := d.encoded[inJSON]; ok {
		return p.unpack()
	}
	content, err := d.source.Build()
	if err != nil {
		return nil, err
	}
	if d.hash == "" {
		d.hash = hashOf(content)
	}
	return content, nil
}

// hashOf is the hash that kube-apiserver gives a document, so that clients' caches
// are good for both servers.
func hashOf(content []byte) string {
	return fmt.Sprintf("%X", sha512.Sum512(content))
}

func protoV2(json []byte) ([]byte, error) {
	document, err := openapi_v2.ParseDocument(json)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(document)
}

func protoV3(json []byte) ([]byte, error) {
	document, err := openapi_v3.ParseDocument(json)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(document)
}
