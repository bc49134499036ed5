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

	"triune.dev/shared/encoded"
)

// choice is what a client has chosen by its Accept header.
type choice struct {
	// served is false where it is something that the fallback makes.
	served bool
	format encoded.Format
	// table is the version of the Table that is asked for, if one is.
	table schema.GroupVersion
	// list tells as=PartialObjectMetadataList from as=PartialObjectMetadata.
	list bool
	// contentType is the header of the response.
	contentType []string
}

// choices remembers them by the header: clients have few different ones. A resource of
// which there are thousands has them, too, so they are few and short; where there are more
// it begins anew, and nobody fills it for long with what nobody else sends.
type choices struct {
	mu    sync.RWMutex
	known map[string]choice // guarded by mu
}

const (
	maxChoices      = 32
	maxAcceptHeader = 256
)

func (c *choices) get(accept string) (choice, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	known, ok := c.known[accept]
	return known, ok
}

func (c *choices) put(accept string, made choice) {
	if len(accept) > maxAcceptHeader {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= maxChoices {
		c.known = map[string]choice{}
	}
	c.known[strings.Clone(accept)] = made // of a request that may be much longer
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

// mayBePretty tells whether anything but the Accept header could decide about the
// encoding: a parameter, or the User-Agent of a tool for humans.
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
	meta, beta := encoded.MetadataJSON, encoded.MetadataBetaJSON
	if target := options.Convert; target != nil {
		v1, v1beta1 := target.GroupVersion() == metav1.SchemeGroupVersion, target.GroupVersion() == metav1beta1.SchemeGroupVersion
		if !v1 && !v1beta1 {
			return choice{}
		}
		// What is transformed has serializers of its own.
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

// partialOf tells whether the choice is the metadata of an object or of a list.
func (c choice) partial() bool { return c.format >= encoded.MetadataJSON }

// acceptsGzip tells whether a client takes compressed answers, as kube-apiserver
// understands the header: any mention of gzip by itself, whatever else there is.
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
