package reads

import (
	"net/http"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/util/apihelpers"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"triune.dev/shared/storage/render"
)

// choice is the negotiated encoding of a response.
type choice struct {
	// served is false if the fallback must answer.
	served bool
	format render.Format
	// table is the version of the requested Table, if any.
	table schema.GroupVersion
	// list is set for as=PartialObjectMetadataList, not for as=PartialObjectMetadata.
	list bool
	// contentType is the Content-Type header of the response.
	contentType []string
}

// choiceCache caches choices by Accept header, of which clients use few. There may be
// thousands of resources, each with a cache, so its entries are few and short. When it is
// full it is emptied, so a client that sends many different headers does not fill it for
// long.
type choiceCache struct {
	mu    sync.RWMutex
	known map[string]choice // guarded by mu
}

const (
	maxChoices      = 32
	maxAcceptHeader = 256
)

func (c *choiceCache) get(accept string) (choice, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	known, ok := c.known[accept]
	return known, ok
}

func (c *choiceCache) put(accept string, made choice) {
	if len(accept) > maxAcceptHeader {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= maxChoices {
		c.known = map[string]choice{}
	}
	c.known[strings.Clone(accept)] = made // not a substring of a long request
}

func (h *Handlers) negotiate(req *http.Request) choice {
	if mayBePretty(req) {
		return h.choose(req)
	}
	accept := req.Header.Get("Accept")
	if known, ok := h.choices.get(accept); ok {
		return known
	}
	c := h.choose(req)
	h.choices.put(accept, c)
	return c
}

// mayBePretty reports whether anything but the Accept header may affect the encoding: a
// parameter, or the User-Agent of an interactive tool.
func mayBePretty(req *http.Request) bool {
	if strings.Contains(req.URL.RawQuery, "pretty") {
		return true
	}
	agent := req.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}

func (h *Handlers) choose(req *http.Request) choice {
	scope := h.config.Scope
	options, info, err := negotiation.NegotiateOutputMediaType(req, scope.Serializer, scope)
	if err != nil {
		return choice{}
	}
	var c choice
	meta, beta := render.MetadataJSON, render.MetadataBetaJSON
	if target := options.Convert; target != nil {
		v1, v1beta1 := target.GroupVersion() == metav1.SchemeGroupVersion, target.GroupVersion() == metav1beta1.SchemeGroupVersion
		if !v1 && !v1beta1 {
			return choice{}
		}
		// Transformed objects have serializers of their own.
		if _, info, err = negotiation.NegotiateOutputMediaType(req, apihelpers.GetMetaInternalVersionCodecs(), scope); err != nil {
			return choice{}
		}
		switch target.Kind {
		case "Table":
			c.table = target.GroupVersion()
		case "PartialObjectMetadata", "PartialObjectMetadataList":
			c.list = target.Kind == "PartialObjectMetadataList"
			c.format = meta
			if v1beta1 {
				c.format = beta
			}
		default:
			return choice{}
		}
	}
	switch info.MediaType {
	case runtime.ContentTypeJSON:
		if info.PrettySerializer != nil && info.Serializer == info.PrettySerializer {
			return choice{}
		}
	case runtime.ContentTypeProtobuf:
		if !c.table.Empty() {
			return choice{}
		}
		c.format++ // each JSON format is followed by its protobuf one
	default:
		return choice{}
	}
	c.served = h.config.Version.Serves(c.format)
	c.contentType = []string{info.MediaType}
	return c
}

// partial reports whether only metadata was requested.
func (c choice) partial() bool { return c.format >= render.MetadataJSON }

// acceptsGzip reports whether a client accepts compressed responses, by kube-apiserver's
// interpretation of the header: "gzip" without parameters, regardless of the other tokens.
func acceptsGzip(req *http.Request) bool {
	header := req.Header.Get("Accept-Encoding")
	if header == "" || !utilfeature.DefaultFeatureGate.Enabled(features.APIResponseCompression) {
		return false
	}
	for token := range strings.SplitSeq(header, ",") {
		if strings.TrimSpace(token) == "gzip" {
			return true
		}
	}
	return false
}
