package parity

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/cluster"
)

// requestTimeout is longer than any answer takes without a fault.
const requestTimeout = 70 * time.Second

// Peer is one of the two servers, with a client for each kind of user. It is safe for
// concurrent use.
type Peer struct {
	Name    string
	Cluster *cluster.Cluster
	clients map[string]*http.Client
}

// NewPeer creates the clients of a cluster.
func NewPeer(name string, c *cluster.Cluster) (*Peer, error) {
	roots, err := pki.LoadPool(c.PKI.ClusterCA.CertFile)
	if err != nil {
		return nil, err
	}
	p := &Peer{Name: name, Cluster: c, clients: map[string]*http.Client{}}
	users := map[string]*pki.Pair{
		"":         nil,
		"admin":    &c.PKI.Admin,
		"nobody":   &c.PKI.EtcdClient,       // signed by a CA that the server does not know
		"frontend": &c.PKI.FrontProxyClient, // may assert any user in headers
	}
	for name, pair := range c.PKI.Clients {
		users[name] = &pair
	}
	for user, pair := range users {
		config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		if pair != nil {
			cert, err := pair.Load()
			if err != nil {
				return nil, err
			}
			// Present it even if the server does not ask for that CA.
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
		}
		transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true, DisableCompression: true}
		p.clients[user] = &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return p, nil
}

// CloseIdle closes idle connections.
func (p *Peer) CloseIdle() {
	for _, client := range p.clients {
		client.CloseIdleConnections()
	}
}

var bearer = map[string]string{"alice": "alice-token", "bob": "bob-token", "forged": "no-such-token"}

// Send sends a request and returns the answer. vars are the values of ${name}; Send adds
// those that the request saves.
func (p *Peer) Send(ctx context.Context, r Request, vars map[string]string) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := p.Open(ctx, r, vars)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	a := &Answer{Code: resp.StatusCode, Header: resp.Header}
	if r.Events > 0 && resp.StatusCode == http.StatusOK {
		a.Events = [][]byte{}
		for s := bufio.NewReader(resp.Body); len(a.Events) < r.Events; {
			line, err := s.ReadBytes('\n')
			if err != nil {
				return nil, fmt.Errorf("%s: after %d of %d events: %w", p.Name, len(a.Events), r.Events, err)
			}
			a.Events = append(a.Events, line)
		}
		return a, nil
	}
	if a.Body, err = io.ReadAll(resp.Body); err != nil {
		return nil, fmt.Errorf("%s: read the body: %w", p.Name, err)
	}
	return a, save(a.Body, r.Save, vars)
}

// Open sends a request and returns the response with its body unread, which the caller
// closes. The request ends with ctx.
func (p *Peer) Open(ctx context.Context, r Request, vars map[string]string) (*http.Response, error) {
	req, err := p.newRequest(ctx, r, vars)
	if err != nil {
		return nil, err
	}
	client, certified := p.clients[cmp.Or(r.User, "admin")]
	if !certified {
		client = p.clients[""]
		switch token, ok := bearer[r.User]; {
		case ok:
			req.Header.Set("Authorization", "Bearer "+token)
		case r.User != "anonymous":
			return nil, fmt.Errorf("unknown user %q", r.User)
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	return resp, nil
}

func (p *Peer) newRequest(ctx context.Context, r Request, vars map[string]string) (*http.Request, error) {
	method, path, ok := strings.Cut(expand(r.Do, vars), " ")
	if !ok {
		return nil, fmt.Errorf("request %q is not a method and a path", r.Do)
	}
	body, contentType, err := r.body(vars)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Do, err)
	}
	base, err := url.Parse(p.Cluster.URL)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, p.Cluster.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	// Send the path as it is written: %2F must remain in one segment.
	if req.URL, err = url.ParseRequestURI(path); err != nil {
		return nil, err
	}
	req.URL.Scheme, req.URL.Host = base.Scheme, base.Host
	if len(body) == 0 {
		req.Body, req.ContentLength = http.NoBody, 0
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	req.Header.Set("User-Agent", "parity")
	for name, value := range r.Headers {
		if value == "" {
			req.Header.Del(name)
			continue
		}
		req.Header.Set(name, expand(value, vars))
	}
	return req, nil
}

func (r Request) body(vars map[string]string) (body []byte, contentType string, err error) {
	switch {
	case r.Generate != "":
		generate, ok := generators[r.Generate]
		if !ok {
			return nil, "", fmt.Errorf("unknown generator %q", r.Generate)
		}
		body, contentType = generate(vars["ns"]), "application/json"
	case r.Object != nil:
		data, err := json.Marshal(r.Object)
		if err != nil {
			return nil, "", err
		}
		body, contentType = []byte(expand(string(data), vars)), "application/json"
		if r.Protobuf {
			if body, err = toProtobuf(body); err != nil {
				return nil, "", err
			}
			contentType = "application/vnd.kubernetes.protobuf"
		}
	case r.Body != "":
		body, contentType = []byte(expand(r.Body, vars)), "application/json"
	}
	if r.Truncate > len(body) {
		return nil, "", fmt.Errorf("truncate %d of %d bytes", r.Truncate, len(body))
	}
	return body[:len(body)-r.Truncate], contentType, nil
}

func toProtobuf(data []byte) ([]byte, error) {
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("encode protobuf: %w", err)
	}
	var out bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(object, &out); err != nil {
		return nil, fmt.Errorf("encode protobuf: %w", err)
	}
	return out.Bytes(), nil
}

func expand(s string, vars map[string]string) string {
	return os.Expand(s, func(name string) string {
		if value, ok := vars[name]; ok {
			return value
		}
		return "${" + name + "}"
	})
}

func save(body []byte, paths map[string]string, vars map[string]string) error {
	if len(paths) == 0 {
		return nil
	}
	var object map[string]any
	if err := json.Unmarshal(body, &object); err != nil {
		return fmt.Errorf("save: %w", err)
	}
	for name, path := range paths {
		value, ok, err := unstructured.NestedFieldNoCopy(object, strings.Split(path, ".")...)
		if err != nil || !ok {
			return errors.Join(fmt.Errorf("save: %s is not in %s", path, body), err)
		}
		if number, ok := value.(float64); ok {
			value = strconv.FormatFloat(number, 'f', -1, 64)
		}
		vars[name] = fmt.Sprint(value)
	}
	return nil
}
