// Package handover transfers the credential of a client to the tier that authenticates it.
//
// The aggregator does not assert the users of its clients to core. It transfers their
// credentials: the bearer token, and the certificate whose private key the client has proved to
// hold in the TLS handshake (compare RFC 9440 for reverse proxies). Core authenticates them as if
// the client were connected to it. An attacker with the aggregator's files, but without the
// credential of a client, can therefore impersonate only the aggregator.
//
// The sending tier calls [FromRequest] before authentication, carries the [Credential] in the
// context ([NewContext], [FromContext]) and adds it to the forwarded request
// ([Credential.SetHeaders]). The receiving tier calls [Extract] and [ParseCertificates]. A
// certificate without its key proves nothing: package authn accepts it only over a connection of
// the aggregator. All functions are safe for concurrent use.
package handover

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

const (
	// CertificatesHeader is set in all requests with a transferred credential. It lists the
	// certificates of the client as DER in base64, starting with its own; it is empty if there
	// are none. All releases remove X-Remote- headers from requests of clients.
	CertificatesHeader = "X-Remote-Client-Certificates"
	// assertedHeader encodes the identity headers of a client that is an authenticating proxy.
	// They are not sent under their own names: a tier of an earlier release could take them
	// for the aggregator's.
	assertedHeader = "X-Remote-Client-Asserted"
)

// Credential is the credential of a client. It is immutable.
type Credential struct {
	// Authorization and Protocols are the headers Authorization and Sec-WebSocket-Protocol.
	Authorization, Protocols []string
	// Asserted are the identity headers of a client with a certificate.
	Asserted http.Header
	// Certificates is the chain of the client, starting with its own certificate.
	Certificates []*x509.Certificate
}

// FromRequest returns the credential of req, with its identity headers asserted. It must be called
// before authentication, which removes credentials from the request.
func FromRequest(req *http.Request, asserted http.Header) *Credential {
	c := &Credential{
		Authorization: req.Header["Authorization"],
		Protocols:     req.Header["Sec-Websocket-Protocol"],
	}
	if req.TLS != nil && len(req.TLS.PeerCertificates) > 0 {
		c.Certificates, c.Asserted = req.TLS.PeerCertificates, asserted
	}
	return c
}

type contextKey struct{}

// NewContext returns a copy of ctx that holds c.
func NewContext(ctx context.Context, c *Credential) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

// FromContext returns the credential in ctx, or nil.
func FromContext(ctx context.Context) *Credential {
	c, _ := ctx.Value(contextKey{}).(*Credential)
	return c
}

// Size returns the approximate number of bytes that [Credential.SetHeaders] adds.
func (c *Credential) Size() int {
	size := 0
	for _, values := range [][]string{c.Authorization, c.Protocols} {
		for _, value := range values {
			size += len(value)
		}
	}
	for _, certificate := range c.Certificates {
		size += base64.StdEncoding.EncodedLen(len(certificate.Raw)) + 1
	}
	for name, values := range c.Asserted {
		for _, value := range values {
			size += 3 * (len(name) + len(value)) // every byte may be escaped
		}
	}
	return size
}

// SetHeaders sets the headers that transfer c. Identity headers must have been removed.
func (c *Credential) SetHeaders(header http.Header) {
	var certificates []byte
	for i, certificate := range c.Certificates {
		if i > 0 {
			certificates = append(certificates, ',')
		}
		certificates = base64.StdEncoding.AppendEncode(certificates, certificate.Raw)
	}
	header[CertificatesHeader] = []string{string(certificates)}
	if len(c.Asserted) > 0 {
		header[assertedHeader] = []string{url.Values(c.Asserted).Encode()}
	}
	if c.Authorization != nil {
		header["Authorization"] = c.Authorization
	}
	if c.Protocols != nil {
		header["Sec-Websocket-Protocol"] = c.Protocols
	}
}

// Extract removes the headers of this package from header, and returns the encoded certificates
// and the identity headers of the client. The headers Authorization and Sec-WebSocket-Protocol
// remain. Extract reports whether the request has a transferred credential.
func Extract(header http.Header) (certificates string, asserted http.Header, ok bool, err error) {
	values, ok := header[CertificatesHeader]
	encoded := header[assertedHeader]
	delete(header, CertificatesHeader)
	delete(header, assertedHeader)
	if !ok {
		return "", nil, false, nil
	}
	if len(values) != 1 || len(encoded) > 1 {
		return "", nil, true, errors.New("duplicate headers of a transferred credential")
	}
	if len(encoded) == 1 {
		parsed, err := url.ParseQuery(encoded[0])
		if err != nil {
			return "", nil, true, fmt.Errorf("asserted headers: %w", err)
		}
		asserted = http.Header(parsed)
	}
	return values[0], asserted, true, nil
}

// ParseCertificates parses a value of [CertificatesHeader].
func ParseCertificates(value string) ([]*x509.Certificate, error) {
	if value == "" {
		return nil, nil
	}
	var chain []*x509.Certificate
	for encoded := range strings.SplitSeq(value, ",") {
		der, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return nil, fmt.Errorf("certificate of a client: %w", err)
		}
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("certificate of a client: %w", err)
		}
		chain = append(chain, certificate)
	}
	return chain, nil
}
