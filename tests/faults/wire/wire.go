// Package wire is as much of the Kubernetes API's JSON and HTTP as the fault
// tests need, without a client library that retries or caches.
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

// Metadata is that of an object or a list.
type Metadata struct {
	Name            string            `json:"name,omitempty"`
	Namespace       string            `json:"namespace,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
}

// Revision is the resourceVersion.
func (m Metadata) Revision() (int64, error) {
	revision, err := strconv.ParseInt(m.ResourceVersion, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resourceVersion of %q: %w", m.Name, err)
	}
	return revision, nil
}

// NewClient returns a client that trusts the servers of a PKI, is its
// administrator, speaks HTTP/2 and shares no connection with others. A
// connection on which nothing is heard for a while is probed, and given up if
// the server does not answer.
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

// NewRequest returns a request with a JSON body, or without one if body is nil.
// Go's transport cannot repeat it, for nobody would know if it did.
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

// Do sends a request and returns the status and the object of the answer, which
// is empty where a server that is in trouble answered with something else. An
// error means that there was no whole answer.
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

// Undialled tells that a request was never sent, for want of a connection.
func Undialled(err error) bool {
	op := (*net.OpError)(nil)
	return errors.As(err, &op) && op.Op == "dial"
}
