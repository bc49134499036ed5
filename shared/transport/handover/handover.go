// Package handover hands the credential of a client over to the tier that examines it.
//
// The aggregator does not tell core who its clients are. It hands over what they have shown:
// the bearer token, and the certificate whose key the client has proved to have in the TLS
// handshake, as RFC 9440 has it for reverse proxies. Core examines them as if the client had
// come to it. So whoever has the aggregator's files, and no client's credential, can be
// nobody but the aggregator.
//
// A certificate alone proves nothing, so it is believed only if it comes over a connection of
// the aggregator, see package authn.
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
	// Header is in every request that is handed over. It has the certificates that the client
	// has shown, DER in base64, the client's own first; it is empty where there are none.
	// Tiers have always removed X-Remote- headers from what clients send.
	Header = "X-Remote-Client-Certificates"
	// assertedHeader has the headers by which a client names a user, as an authenticating
	// proxy does. They are not sent as they are: a tier that does not know of handing over
	// could take them for the aggregator's.
	assertedHeader = "X-Remote-Client-Asserted"
)

// Credential is what a client has shown. It is not changed once it is made.
type Credential struct {
	// Authorization and Protocols are the headers Authorization and Sec-WebSocket-Protocol.
	Authorization, Protocols []string
	// Asserted are the headers by which a client with a certificate names a user.
	Asserted http.Header
	// Certificates are the client's, with its own first.
	Certificates []*x509.Certificate
}

// Of returns the credential in req. asserted are the headers by which it names a user. It
// must be called before authentication, which removes what it has examined.
func Of(req *http.Request, asserted http.Header) *Credential {
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

// With returns a context that has c.
func With(ctx context.Context, c *Credential) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

// From returns the credential in ctx, nil if there is none.
func From(ctx context.Context) *Credential {
	c, _ := ctx.Value(contextKey{}).(*Credential)
	return c
}

// Size is about how many bytes [Credential.Add] adds.
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
			size += 3 * (len(name) + len(value)) // all of it may be escaped
		}
	}
	return size
}

// Add adds c to the headers of a request, from which identity headers have been removed.
func (c *Credential) Add(header http.Header) {
	var certificates []byte
	for i, certificate := range c.Certificates {
		if i > 0 {
			certificates = append(certificates, ',')
		}
		certificates = base64.StdEncoding.AppendEncode(certificates, certificate.Raw)
	}
	header[Header] = []string{string(certificates)}
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

// Take removes from header what [Credential.Add] has added and no other server knows, and
// returns it: the certificates as they came, and what the client asserts. The headers
// Authorization and Sec-WebSocket-Protocol stay where they are. It reports whether something
// is handed over at all.
func Take(header http.Header) (certificates string, asserted http.Header, ok bool, err error) {
	values, ok := header[Header]
	encoded := header[assertedHeader]
	delete(header, Header)
	delete(header, assertedHeader)
	if !ok {
		return "", nil, false, nil
	}
	if len(values) != 1 || len(encoded) > 1 {
		return "", nil, true, errors.New("what is handed over is there twice")
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

// Parse returns the certificates of a value of [Header].
func Parse(value string) ([]*x509.Certificate, error) {
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
