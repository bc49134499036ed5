package discovery

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apidiscoveryv2beta1 "k8s.io/api/apidiscovery/v2beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	apidiscoveryconversion "k8s.io/apiserver/pkg/apis/apidiscovery/v2"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericfeatures "k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// codecs encode and decode aggregated discovery, v2 and v2beta1.
var codecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	utilruntime.Must(apidiscoveryv2.AddToScheme(scheme))
	utilruntime.Must(apidiscoveryv2beta1.AddToScheme(scheme))
	utilruntime.Must(apidiscoveryconversion.RegisterConversions(scheme))
	return serializer.NewCodecFactory(scheme)
}()

// document is an aggregated discovery document. Each form is encoded once, on its first use, and
// then served as bytes. (Upstream's aggregated.ServeHTTPWithETag encodes every response, and
// http.ServeContent answers ranges, which kube-apiserver does not.)
type document struct {
	list *apidiscoveryv2.APIGroupDiscoveryList
	etag string

	mu    sync.Mutex
	forms map[form]*encoded
}

type form struct {
	gv        schema.GroupVersion
	mediaType string
	pretty    bool
}

type encoded struct {
	plain   []byte
	gzipped func() []byte
}

func newDocument(groups []apidiscoveryv2.APIGroupDiscovery) (*document, error) {
	list := &apidiscoveryv2.APIGroupDiscoveryList{Items: groups}
	// As in kube-apiserver, the ETag is that of the JSON encoding. Vary separates the forms in
	// caches.
	content, err := json.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("encode discovery: %w", err)
	}
	return &document{
		list:  list,
		etag:  strconv.Quote(fmt.Sprintf("%X", sha512.Sum512(content))),
		forms: map[form]*encoded{},
	}, nil
}

// wantsAggregated reports whether the client accepts aggregated discovery.
func wantsAggregated(req *http.Request) bool {
	mediaType, _ := negotiation.NegotiateMediaTypeOptions(req.Header.Get("Accept"), codecs.SupportedMediaTypes(), aggregated.DiscoveryEndpointRestrictions)
	return aggregated.IsAggregatedDiscoveryGVK(mediaType.Convert)
}

// gzipThreshold is the size from which kube-apiserver compresses responses.
const gzipThreshold = 128 << 10

// ServeHTTP answers a request for which wantsAggregated is true.
func (d *document) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	mediaType, info, err := negotiation.NegotiateOutputMediaType(req, codecs, aggregated.DiscoveryEndpointRestrictions)
	if err != nil || mediaType.Convert == nil {
		responsewriters.InternalError(w, req, fmt.Errorf("negotiate discovery: %w", err))
		return
	}
	header := w.Header()
	header.Set("ETag", d.etag)
	header.Set("Vary", "Accept")
	header.Set("Cache-Control", "public")
	if req.Header.Get("If-None-Match") == d.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	gv := mediaType.Convert.GroupVersion()
	content, err := d.encode(form{gv: gv, mediaType: info.MediaType, pretty: mediaType.Pretty}, info)
	if err != nil {
		responsewriters.InternalError(w, req, err)
		return
	}
	header.Set("Content-Type", fmt.Sprintf("%s;g=%s;v=%s;as=%s", info.MediaType, gv.Group, gv.Version, mediaType.Convert.Kind))
	body := content.plain
	if len(body) > gzipThreshold && acceptsGzip(req) {
		body = content.gzipped()
		header.Set("Content-Encoding", "gzip")
		header.Add("Vary", "Accept-Encoding")
	}
	w.WriteHeader(http.StatusOK)
	if req.Method != http.MethodHead {
		w.Write(body)
	}
}

func (d *document) encode(key form, info runtime.SerializerInfo) (*encoded, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if have := d.forms[key]; have != nil {
		return have, nil
	}
	encoder := info.Serializer
	if key.pretty && info.PrettySerializer != nil {
		encoder = info.PrettySerializer
	}
	plain, err := runtime.Encode(codecs.EncoderForVersion(encoder, key.gv), d.list.DeepCopy())
	if err != nil {
		return nil, fmt.Errorf("encode discovery as %s %s: %w", key.gv, key.mediaType, err)
	}
	made := &encoded{plain: plain, gzipped: sync.OnceValue(func() []byte { return compress(plain) })}
	d.forms[key] = made
	return made, nil
}

func compress(plain []byte) []byte {
	var out bytes.Buffer
	writer, _ := gzip.NewWriterLevel(&out, gzip.DefaultCompression) // the level is valid
	_, _ = writer.Write(plain)                                      // never fails for a buffer
	_ = writer.Close()
	return out.Bytes()
}

func acceptsGzip(req *http.Request) bool {
	if !utilfeature.DefaultFeatureGate.Enabled(genericfeatures.APIResponseCompression) {
		return false
	}
	for encoding := range strings.SplitSeq(req.Header.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(encoding) == "gzip" {
			return true
		}
	}
	return false
}
