package documents

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/user"

	"triune.dev/shared/transport/loopback"
	"triune.dev/shared/transport/tierclient"
)

// Handler returns a Getter that calls h, which may be another tier or this one, on behalf of
// the user. Requests carry no other identity. (It sends requests and serves no documents, so
// [http.ServeContent] does not apply.)
func Handler(h http.Handler) Getter { return handlerGetter{h} }

type handlerGetter struct{ handler http.Handler }

// Get implements [Getter].
func (g handlerGetter) Get(ctx context.Context, u user.Info, path string, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+loopback.Host+path, nil)
	if err != nil {
		return nil, err
	}
	if header != nil {
		req.Header = header.Clone()
	}
	handler := tierclient.As(u, g.handler)
	return loopback.New(func() http.Handler { return handler }).RoundTrip(req)
}
