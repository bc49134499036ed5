package remote

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/client-go/transport"

	"triune.dev/shared/transport/documents"
)

// probeTimeout bounds a probe.
const probeTimeout = 5 * time.Second

// Probe requests the discovery document of the APIService's group-version from one address. The
// text of the error is that of kube-aggregator, because it becomes part of the APIService's
// condition.
func (b *Backend) Probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	connections, err := b.network.Transports.For(b.apiService)
	if err != nil {
		return err
	}
	reference := b.apiService.Spec.Service
	location, err := FirstURL{b.network.Resolver}.ResolveEndpoint(reference.Namespace, reference.Name, b.port())
	if err != nil {
		return err
	}
	location.Path = "/apis/" + b.apiService.Spec.Group + "/" + b.apiService.Spec.Version
	if b.apiService.Spec.Group == "" {
		location.Path = "/api/" + b.apiService.Spec.Version
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), nil)
	if err != nil {
		return err
	}
	u := documents.Aggregator
	transport.SetAuthProxyHeaders(req, u.GetName(), "", u.GetGroups(), nil)
	resp, err := connections.roundTripper.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("failing or missing response from %v: Get %q: %w", location, location, err)
	}
	resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fmt.Errorf("failing or missing response from %v: bad status from %v: %d", location, location, resp.StatusCode)
	}
	return nil
}
