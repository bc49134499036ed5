package core

import (
	"net/http"
	"time"

	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"triune.dev/shared/server/apiserver"
	triuneopenapi "triune.dev/shared/server/openapi"
	"triune.dev/shared/server/openapi/merged"
	"triune.dev/shared/transport/documents"
	"triune.dev/shared/transport/tierclient"
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
	var handler http.Handler = s.openapi.Documents()
	if next := c.environment.Next; next != nil {
		s.merged = merged.NewDocuments(
			merged.Source{Name: Tier, From: documents.Handler(handler), Handler: handler, Patience: buildPatience},
			nextDocuments(next),
		)
		handler = s.merged
	}
	s.Handle(triuneopenapi.PathV2, handler)
	s.Handle(triuneopenapi.PathV3, handler)
	s.UnlistedHandlePrefix(triuneopenapi.PathV3+"/", handler)
}

// nextDocuments are those of the tiers behind core, asked for in core's own name.
func nextDocuments(next *apiserver.Next) merged.Source {
	handler := tierclient.As(tierclient.User(Tier), next.Handler)
	return merged.Source{Name: next.Tier, From: documents.Handler(handler), Handler: handler}
}
