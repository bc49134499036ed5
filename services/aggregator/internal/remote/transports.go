package remote

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

const (
	// dialTimeout bounds the TCP handshake with one address. It is much shorter
	// than the request's own deadline so that the next address still has a turn.
	dialTimeout = 10 * time.Second
	// streamBuffer is what an extension server may send ahead on one HTTP/2
	// stream that its reader does not drain. Go's default of 4 MiB is a memory
	// bill of a gigabyte for a few hundred stalled watches.
	streamBuffer = 256 << 10
	// pingAfter is the silence after which a connection is asked whether it is
	// still there: an unplugged node says nothing at all.
	pingAfter = 30 * time.Second
)

// DialFunc opens a TCP connection.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Transports shares connections between the APIServices whose server is verified
// in the same way. It is a dynamiccertificates.Listener: Enqueue replaces all
// transports because the client certificate has changed.
type Transports struct {
	identity *Identity
	dial     DialFunc
	wrap     func(http.RoundTripper) http.RoundTripper

	mu      sync.Mutex
	byTrust map[trust]*serverTransport
}

// NewTransports returns an empty set. A nil dial is a plain TCP dial; wrap, if not
// nil, sees every request and response but upgrades.
func NewTransports(identity *Identity, dial DialFunc, wrap func(http.RoundTripper) http.RoundTripper) *Transports {
	if dial == nil {
		dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: pingAfter}
		dial = dialer.DialContext
	}
	if wrap == nil {
		wrap = func(next http.RoundTripper) http.RoundTripper { return next }
	}
	return &Transports{identity: identity, dial: dial, wrap: wrap, byTrust: map[trust]*serverTransport{}}
}

// trust is everything that decides whether a server is believed to be the one
// an APIService names. Two APIServices of equal trust may share connections.
type trust struct {
	serverName string
	caBundle   [sha256.Size]byte // of the empty string: the system's roots
	insecure   bool
}

func trustOf(apiService *apiregistrationv1.APIService) trust {
	return trust{
		serverName: serverName(apiService),
		caBundle:   sha256.Sum256(apiService.Spec.CABundle),
		insecure:   apiService.Spec.InsecureSkipTLSVerify,
	}
}

// serverName is the name an extension server must prove: its certificate is for
// the Service's DNS name, whatever address it is reached at.
func serverName(apiService *apiregistrationv1.APIService) string {
	return apiService.Spec.Service.Name + "." + apiService.Spec.Service.Namespace + ".svc"
}

// verified is a transport and the pieces of it an upgrade needs, which dials
// for itself because an upgraded connection leaves the pool.
type serverTransport struct {
	http *http.Transport
	// sender is http with whatever looks on.
	roundTripper http.RoundTripper
	tls          *tls.Config
	dial         DialFunc
}

var errNoCertificates = errors.New("unable to load root certificates: unable to parse bytes as PEM block")

// For returns the transport for an APIService. It fails where the CA bundle
// holds no certificate; validation of APIServices leaves that to us.
func (t *Transports) For(apiService *apiregistrationv1.APIService) (*serverTransport, error) {
	key := trustOf(apiService)
	t.mu.Lock()
	defer t.mu.Unlock()
	if have, ok := t.byTrust[key]; ok {
		return have, nil
	}
	config := &tls.Config{
		MinVersion:           tls.VersionTLS12,
		ServerName:           key.serverName,
		InsecureSkipVerify:   key.insecure, //nolint:gosec // spec.insecureSkipTLSVerify is the administrator's decision
		GetClientCertificate: t.identity.clientCertificate,
	}
	if bundle := apiService.Spec.CABundle; len(bundle) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(bundle) {
			return nil, errNoCertificates
		}
	}
	made := &serverTransport{
		tls:  config,
		dial: t.dial,
		http: &http.Transport{
			DialContext:           t.dial,
			TLSClientConfig:       config.Clone(),
			TLSHandshakeTimeout:   dialTimeout,
			ForceAttemptHTTP2:     true,
			DisableCompression:    true, // bodies are passed on as they came
			MaxIdleConnsPerHost:   25,
			IdleConnTimeout:       90 * time.Second,
			ExpectContinueTimeout: time.Second,
			HTTP2: &http.HTTP2Config{
				MaxReceiveBufferPerStream: streamBuffer,
				SendPingTimeout:           pingAfter,
				PingTimeout:               pingAfter / 2,
			},
		},
	}
	made.roundTripper = t.wrap(made.http)
	t.byTrust[key] = made
	return made, nil
}

// Enqueue lets go of every transport. Requests under way finish on the
// connections they have; later ones dial with the new certificate.
func (t *Transports) Enqueue() { t.Retain(nil) }

// Retain lets go of the transports that none of the given APIServices uses.
func (t *Transports) Retain(apiServices []*apiregistrationv1.APIService) {
	used := make(map[trust]bool, len(apiServices))
	for _, apiService := range apiServices {
		if apiService.Spec.Service != nil {
			used[trustOf(apiService)] = true
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, transport := range t.byTrust {
		if !used[key] {
			delete(t.byTrust, key)
			transport.http.CloseIdleConnections()
		}
	}
}
