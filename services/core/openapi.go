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

// buildTimeout bounds the time that a request waits for core's own documents. The first
// request builds them, which takes a second or two, and longer on a busy machine.
const buildTimeout = time.Minute

// installOpenAPI serves the documents of core and of the tiers behind it. They are built at
// the first request.
func (s *Server) installOpenAPI(c *Config) {
	extras := []triuneopenapi.Extra{
		triuneopenapi.Version(),
		triuneopenapi.GroupList(legacyscheme.Codecs),
		triuneopenapi.LegacyVersions(legacyscheme.Codecs),
	}
	if s.hasIssuer {
		extras = append(extras, triuneopenapi.IssuerConfiguration(), triuneopenapi.IssuerKeys())
	}
	if c.options.EnableLogsHandler {
		extras = append(extras, triuneopenapi.Logs())
	}
	s.openapi.Describe(s.Table(), extras...)
	var handler http.Handler = s.openapi.Documents()
	if next := c.environment.Next; next != nil {
		s.merged = merged.NewDocuments(
			merged.Source{Name: Tier, From: documents.Handler(handler), Handler: handler, Patience: buildTimeout},
			nextDocuments(next),
		)
		handler = s.merged
	}
	s.Handle(triuneopenapi.PathV2, handler)
	s.Handle(triuneopenapi.PathV3, handler)
	s.UnlistedHandlePrefix(triuneopenapi.PathV3+"/", handler)
}

// nextDocuments returns the source of the documents of the tiers behind core, which are
// requested with core's identity.
func nextDocuments(next *apiserver.Next) merged.Source {
	handler := tierclient.As(tierclient.User(Tier), next.Handler)
	return merged.Source{Name: next.Tier, From: documents.Handler(handler), Handler: handler}
}
