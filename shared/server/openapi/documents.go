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

// Paths of the documents.
const (
	PathV2 = "/openapi/v2"
	PathV3 = "/openapi/v3"
)

// Source is the source of a document.
type Source struct {
	// Tag changes whenever the document changes. It is the ETag of the document and, in v3, the
	// hash in its URL. If it is empty, the hash of the document is used, which requires
	// building the document for the index.
	Tag string
	// Build returns the document as JSON. It must always return the same content, and be safe
	// for concurrent use.
	Build func() ([]byte, error)
}

// Documents serves the OpenAPI documents of a tier over HTTP. Sources can be added, replaced
// and removed while it serves.
type Documents struct {
	started time.Time

	mu    sync.Mutex
	v2    *document
	v3    map[string]*document // by path below PathV3: "apis/apps/v1"
	index *document            // nil after a change of v3
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

// indexV3 returns the index of all v3 documents with their hashes. It holds no lock while it
// builds documents for their hashes. If the documents change meanwhile, it returns the index
// from before the change and does not keep it.
func (d *Documents) indexV3() *document {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.index == nil {
		documents := maps.Clone(d.v3)
		d.index = newDocument(Source{Build: func() ([]byte, error) { return buildIndex(documents) }}, nil)
	}
	return d.index
}

// Index is the v3 index (KEP-2896): the URL of every document, by its path.
type Index struct {
	Paths map[string]IndexEntry `json:"paths"`
}

// IndexEntry locates a document. The URL changes with the document, so its content can be
// cached forever.
type IndexEntry struct {
	ServerRelativeURL string `json:"serverRelativeURL"`
}

func buildIndex(documents map[string]*document) ([]byte, error) {
	index := Index{Paths: make(map[string]IndexEntry, len(documents))}
	for path, document := range documents {
		tag, err := document.tag()
		if err != nil {
			// A document that cannot be built must not affect the others.
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

// document is one document, and the encodings of it built so far.
type document struct {
	source  Source
	toProto func(json []byte) ([]byte, error)

	mu      sync.Mutex
	hash    string
	encoded map[encoding]compressed
}

// encoding is the encoding in which a document is served.
type encoding int

const (
	inJSON encoding = iota
	inProtobuf
)

func newDocument(source Source, toProto func([]byte) ([]byte, error)) *document {
	return &document{source: source, toProto: toProto, hash: source.Tag, encoded: map[encoding]compressed{}}
}

// tag returns the hash of the document and builds the document if necessary. It does not keep
// the result, because a client that gets the index needs one or two documents, not all.
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

// knownTag returns the hash of the document if that requires no build, or "".
func (d *document) knownTag() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hash
}

// get returns the document in an encoding, and its hash.
func (d *document) get(as encoding) (compressed, string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.compressLocked(as)
	return p, d.hash, err
}

func (d *document) compressLocked(as encoding) (compressed, error) {
	if p, ok := d.encoded[as]; ok {
		return p, nil
	}
	content, err := d.jsonLocked()
	if err != nil {
		return compressed{}, err
	}
	if as == inProtobuf {
		if content, err = d.toProto(content); err != nil {
			return compressed{}, fmt.Errorf("convert OpenAPI document to protobuf: %w", err)
		}
	}
	p, err := compress(content)
	if err != nil {
		return compressed{}, err
	}
	d.encoded[as] = p
	return p, nil
}

// jsonLocked returns the document as JSON, from its compressed form or from its source.
func (d *document) jsonLocked() ([]byte, error) {
	if p, ok := d.encoded[inJSON]; ok {
		return p.decompress()
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

// hashOf returns the hash that kube-apiserver gives a document, so that the caches of clients
// work with both servers.
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
