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
	// dialTimeout bounds the TCP handshake with an address, and then the TLS handshake. It is
	// much shorter than the deadline of a request, so that another address can be tried if
	// no connection can be made. The dialer of an egress proxy has its own timeout.
	dialTimeout = 10 * time.Second
	// streamBuffer bounds the unread data of an HTTP/2 stream. With Go's default of 4 MiB, a few
	// hundred stalled watches would hold a gigabyte.
	streamBuffer = 256 << 10
	// pingAfter is the silence after which a connection is pinged, to detect vanished nodes.
	pingAfter = 30 * time.Second
)

// DialFunc opens a TCP connection.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Transports shares connections among APIServices that verify their servers in the same way. It
// implements dynamiccertificates.Listener: Enqueue replaces all transports when the client
// certificate has changed.
type Transports struct {
	identity *Identity
	dial     DialFunc
	wrap     func(http.RoundTripper) http.RoundTripper

	mu      sync.Mutex
	byTrust map[trust]*serverTransport
}

// NewTransports returns an empty set. A nil dial selects plain TCP. wrap, if set, wraps the round
// trippers for all requests except upgrades.
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

// trust holds the settings for the verification of a server. APIServices with equal trust share
// connections.
type trust struct {
	serverName string
	caBundle   [sha256.Size]byte // of the empty string: system roots
	insecure   bool
}

func trustOf(apiService *apiregistrationv1.APIService) trust {
	return trust{
		serverName: serverName(apiService),
		caBundle:   sha256.Sum256(apiService.Spec.CABundle),
		insecure:   apiService.Spec.InsecureSkipTLSVerify,
	}
}

// serverName returns the expected name in the certificate: the DNS name of the Service, for any
// address.
func serverName(apiService *apiregistrationv1.APIService) string {
	return apiService.Spec.Service.Name + "." + apiService.Spec.Service.Namespace + ".svc"
}

// serverTransport is an HTTP transport, and its parts for upgrades, which need a connection of
// their own.
type serverTransport struct {
	http *http.Transport
	// roundTripper is http with wrap applied.
	roundTripper http.RoundTripper
	tls          *tls.Config
	dial         DialFunc
}

var errNoCertificates = errors.New("unable to load root certificates: unable to parse bytes as PEM block")

// For returns the transport for an APIService. It returns an error if the CA bundle contains no
// certificate, which the validation of APIServices does not check.
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
			DisableCompression:    true, // forward bodies unchanged
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

// Enqueue drops all transports. Current requests finish on their connections; later ones use the
// new certificate.
func (t *Transports) Enqueue() { t.Retain(nil) }

// Retain drops the transports that none of apiServices uses.
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
