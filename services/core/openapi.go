package core

import (
	"net/http"
	"time"

	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"triune.dev/shared/apiserver"
	"triune.dev/shared/fetch"
	triuneopenapi "triune.dev/shared/openapi"
	"triune.dev/shared/openapi/merged"
	"triune.dev/shared/peer"
)

// buildPatience is how long a request waits for core's own documents, which are
// built at the first one: a second or two, more on a machine that is busy.
const buildPatience = time.Minute

// installOpenAPI serves the documents of core and of every tier behind it.
// Nothing of them is built before somebody asks.
func (s *Server) installOpenAPI(c *Config) {
	extras := []triuneopenapi.Extra{
		triuneopenapi.Version(),
		triuneopenapi.GroupList(legacyscheme.Codecs),
		triuneopenapi.LegacyVersions(legacyscheme.Codecs),
	}
	if s.hasIssuer {
		extras = append(extras, triuneopenapi.IssuerConfiguration(), triuneopenapi.IssuerKeys())
	}
	s.openapi.Describe(s.Table(), extras...)
	var documents http.Handler = s.openapi.Documents()
	if next := c.environment.Next; next != nil {
		s.merged = merged.NewDocuments(
			merged.Source{Name: Tier, From: fetch.Handler(documents), Handler: documents, Patience: buildPatience},
			nextDocuments(next),
		)
		documents = s.merged
	}
	s.Handle(triuneopenapi.PathV2, documents)
	s.Handle(triuneopenapi.PathV3, documents)
	s.UnlistedHandlePrefix(triuneopenapi.PathV3+"/", documents)
}

// nextDocuments are those of the tiers behind core, asked for in core's own name.
func nextDocuments(next *apiserver.Next) merged.Source {
	handler := peer.As(peer.User(Tier), next.Handler)
	return merged.Source{Name: next.Tier, From: fetch.Handler(handler), Handler: handler}
}
