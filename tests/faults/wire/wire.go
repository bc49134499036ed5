// Package wire has the parts of the Kubernetes API's JSON and HTTP that the fault tests
// need, without a client library that retries or caches.
package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"triune.dev/shared/process/pki"
)

// Object is a config map, a namespace, a list of them or a Status.
type Object struct {
	APIVersion string            `json:"apiVersion,omitempty"`
	Kind       string            `json:"kind,omitempty"`
	Metadata   Metadata          `json:"metadata"`
	Data       map[string]string `json:"data,omitempty"`
	Items      []Object          `json:"items,omitempty"`
	Code       int               `json:"code,omitempty"`
	Reason     string            `json:"reason,omitempty"`
	Message    string            `json:"message,omitempty"`
}

// Metadata is the metadata of an object or a list.
type Metadata struct {
	Name            string            `json:"name,omitempty"`
	Namespace       string            `json:"namespace,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
}

// Revision returns the resourceVersion as a number.
func (m Metadata) Revision() (int64, error) {
	revision, err := strconv.ParseInt(m.ResourceVersion, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resourceVersion of %q: %w", m.Name, err)
	}
	return revision, nil
}

// NewClient returns an administrator's client that trusts the servers of a PKI, uses HTTP/2
// and shares no connections. An idle connection is pinged, and closed if the server does
// not answer.
func NewClient(p *pki.PKI) (*http.Client, error) {
	roots, err := pki.LoadPool(p.ClusterCA.CertFile)
	if err != nil {
		return nil, err
	}
	admin, err := p.Admin.Load()
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{admin}},
		ForceAttemptHTTP2: true,
		DialContext:       (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
		HTTP2:             &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second},
	}}, nil
}

// NewRequest returns a request with a JSON body, or without one if body is nil. Go's
// transport cannot retry it, which would go unnoticed.
func NewRequest(ctx context.Context, method, url, contentType string, body any) (*http.Request, error) {
	var reader io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		reader = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, reader)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	req.GetBody = nil
	req.Header.Set("Accept", "application/json")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	return req, nil
}

// Do sends a request and returns the status and the object of the answer, which is empty if
// the server answered with something else. An error means that there was no complete
// answer.
func Do(client *http.Client, req *http.Request) (int, Object, error) {
	resp, err := client.Do(req)
	if err != nil {
		return 0, Object{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, Object{}, fmt.Errorf("%s %s: %s, then %w", req.Method, req.URL, resp.Status, err)
	}
	var o Object
	if err := json.Unmarshal(body, &o); err != nil {
		if resp.StatusCode < http.StatusInternalServerError {
			return 0, Object{}, fmt.Errorf("%s %s: %s: %w: %.200s", req.Method, req.URL, resp.Status, err, body)
		}
		o = Object{Message: string(body)}
	}
	return resp.StatusCode, o, nil
}

// Undialled reports whether a request was never sent because there was no connection.
func Undialled(err error) bool {
	op := (*net.OpError)(nil)
	return errors.As(err, &op) && op.Op == "dial"
}
