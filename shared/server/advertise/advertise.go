package advertise

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// Path is the path at which core takes endpoints. Package authz allows it to aggregators.
const Path = "/triune/endpoints"

const (
	// service is the Service whose endpoints are maintained, in the namespace default.
	service = "kubernetes"
	// portName is the name of its port.
	portName = "https"
	// maxBody bounds the body of a request, in bytes.
	maxBody = 1 << 10
	// renewal is how often an address is advertised again. A lease lasts 15 s.
	renewal = 5 * time.Second
	// retry is the pause between two checks of whether the server is ready.
	retry = 200 * time.Millisecond
	// timeout bounds one request. A shutdown waits for the last one.
	timeout = 2 * time.Second
)

// Endpoint is the address of an API server, as JSON in the body of a request.
type Endpoint struct {
	Address net.IP `json:"address"`
	Port    int32  `json:"port"`
}

func (e Endpoint) validate() error {
	if e.Address == nil || e.Address.IsUnspecified() || e.Address.IsLoopback() || e.Address.IsMulticast() || e.Address.IsLinkLocalUnicast() {
		return fmt.Errorf("address %q is not one that Pods can reach", e.Address)
	}
	if e.Port < 1 || e.Port > 65535 {
		return fmt.Errorf("port %d is not between 1 and 65535", e.Port)
	}
	return nil
}

func (e Endpoint) ports() []corev1.EndpointPort {
	return []corev1.EndpointPort{{Name: portName, Port: e.Port, Protocol: corev1.ProtocolTCP}}
}

// Reconciler maintains endpoints and their leases. The reconcilers of
// k8s.io/kubernetes/pkg/controlplane/reconcilers implement it.
type Reconciler interface {
	ReconcileEndpoints(service string, ip net.IP, ports []corev1.EndpointPort, reconcilePorts bool) error
	RemoveEndpoints(service string, ip net.IP, ports []corev1.EndpointPort) error
}

// Handler returns the handler of Path: PUT adds an endpoint or renews its lease, and DELETE
// removes it.
func Handler(r Reconciler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodPut && req.Method != http.MethodDelete {
			w.Header().Set("Allow", http.MethodPut+", "+http.MethodDelete)
			http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
			return
		}
		var endpoint Endpoint
		err := json.NewDecoder(io.LimitReader(req.Body, maxBody)).Decode(&endpoint)
		if err == nil {
			err = endpoint.validate()
		}
		if err != nil {
			http.Error(w, "endpoint: "+err.Error(), http.StatusBadRequest)
			return
		}
		if req.Method == http.MethodDelete {
			err = r.RemoveEndpoints(service, endpoint.Address, endpoint.ports())
		} else {
			err = r.ReconcileEndpoints(service, endpoint.Address, endpoint.ports(), true)
		}
		if err != nil {
			http.Error(w, fmt.Sprintf("endpoints of the Service %s: %v", service, err), http.StatusInternalServerError)
		}
	})
}

// Config configures an Advertiser. All fields are required.
type Config struct {
	Endpoint Endpoint
	// Ready returns nil when the server is ready.
	Ready func(ctx context.Context) error
	// Send sends a request with a JSON body to Path of core.
	Send func(ctx context.Context, method string, body []byte) error
}

// Advertiser advertises the address of an API server.
type Advertiser struct {
	config Config
	body   []byte
}

// New returns an Advertiser. It fails if the endpoint is not one that Pods can reach.
func New(config Config) (*Advertiser, error) {
	if err := config.Endpoint.validate(); err != nil {
		return nil, err
	}
	body, err := json.Marshal(config.Endpoint)
	return &Advertiser{config, body}, err
}

// Run advertises the address from when the server is ready until ctx ends.
func (a *Advertiser) Run(ctx context.Context) {
	for a.call(ctx, a.config.Ready) != nil && sleep(ctx, retry) {
	}
	var last error
	for ctx.Err() == nil {
		err := a.call(ctx, func(ctx context.Context) error { return a.config.Send(ctx, http.MethodPut, a.body) })
		if err != nil && last == nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "the address of this server is not advertised", "address", a.config.Endpoint.Address)
		}
		last = err
		sleep(ctx, renewal)
	}
}

// Withdraw removes the address. Call it after Run has ended. It fails for the last address,
// without which clients would find nobody.
func (a *Advertiser) Withdraw() error {
	return a.call(context.Background(), func(ctx context.Context) error { return a.config.Send(ctx, http.MethodDelete, a.body) })
}

func (a *Advertiser) call(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return f(ctx)
}

// sleep waits, and reports whether ctx has not ended.
func sleep(ctx context.Context, pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return true
	case <-ctx.Done():
		return false
	}
}
