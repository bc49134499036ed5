package parity

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// Answer is a server's answer as received.
type Answer struct {
	Code   int
	Header http.Header
	Body   []byte
	// Events are the frames of a watch.
	Events [][]byte
}

// Normal is an answer in the form in which answers are compared.
type Normal struct {
	Code   int
	Header map[string][]string
	Body   any
	// Newline reports whether the body ends with a newline, as encoders and http.Error
	// write it.
	Newline bool
}

// presentOnly lists headers whose values differ on every request: only their presence is
// compared.
var presentOnly = []string{
	"Audit-Id", "Date", "Etag", "Last-Modified", "Process-Start-Time-Unix",
	"X-Kubernetes-Pf-Flowschema-Uid", "X-Kubernetes-Pf-Prioritylevel-Uid",
}

// unchecked lists headers that depend on the length of replaced values, or on the framing
// of the connection.
var unchecked = []string{"Content-Length", "Transfer-Encoding", "Connection"}

// Normal returns the answer in the form for comparison.
func (a *Answer) Normal(n *Normaliser) (Normal, error) {
	out := Normal{Code: a.Code, Header: map[string][]string{}}
	for name, values := range a.Header {
		switch {
		case slices.Contains(unchecked, name):
		case slices.Contains(presentOnly, name):
			out.Header[name] = []string{"<present>"}
		default:
			for _, v := range values {
				out.Header[name] = append(out.Header[name], n.Text(v))
			}
		}
	}
	if a.Events != nil {
		events := make([]any, len(a.Events))
		for i, e := range a.Events {
			v, err := n.JSON(e)
			if err != nil {
				return out, fmt.Errorf("event %d: %w\n%s", i, err, e)
			}
			events[i] = v
		}
		out.Body = events
		return out, nil
	}
	body := a.Body
	if a.Header.Get("Content-Encoding") == "gzip" && len(body) > 0 {
		r, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return out, fmt.Errorf("unzip the body: %w", err)
		}
		if body, err = io.ReadAll(r); err != nil {
			return out, fmt.Errorf("unzip the body: %w", err)
		}
	}
	out.Newline = bytes.HasSuffix(body, []byte("\n"))
	var err error
	out.Body, err = decodeBody(n, a.Header.Get("Content-Type"), body)
	return out, err
}

func decodeBody(n *Normaliser, contentType string, body []byte) (any, error) {
	media, _, _ := strings.Cut(contentType, ";")
	switch {
	case len(body) == 0:
		return "", nil
	case strings.HasSuffix(media, "json"):
		return n.JSON(body)
	case strings.HasSuffix(media, "yaml"):
		data, err := yaml.YAMLToJSON(body)
		if err != nil {
			return nil, fmt.Errorf("read yaml: %w", err)
		}
		return n.JSON(data)
	case media == "application/vnd.kubernetes.protobuf":
		return decodeProtobuf(n, body)
	default:
		return n.Text(string(body)), nil
	}
}

// known has the types of client-go, and those that an Accept header can request instead.
var known = func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(scheme.AddToScheme(s))
	utilruntime.Must(metav1.AddMetaToScheme(s))
	utilruntime.Must(metav1beta1.AddMetaToScheme(s))
	return s
}()

// decodeProtobuf decodes the envelope and, if client-go has the type, its content. Protobuf
// has no null and no empty list that could be confused.
func decodeProtobuf(n *Normaliser, body []byte) (any, error) {
	if !bytes.HasPrefix(body, []byte("k8s\x00")) {
		return nil, errors.New("read protobuf: the magic number is missing")
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(body[4:]); err != nil {
		return nil, fmt.Errorf("read protobuf: %w", err)
	}
	head := fmt.Sprintf("%s, Kind=%s, encoding %q, type %q", envelope.APIVersion, envelope.Kind, envelope.ContentEncoding, envelope.ContentType)
	// Discovery of the core group does not state its version.
	unnamed := &schema.GroupVersionKind{Version: "v1", Kind: envelope.Kind}
	object, _, err := protobuf.NewSerializer(known, known).Decode(body, unnamed, nil)
	if runtime.IsNotRegisteredError(err) {
		return map[string]any{"envelope": head, "raw": fmt.Sprintf("%d bytes", len(envelope.Raw))}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read protobuf: %w", err)
	}
	data, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("read protobuf: %w", err)
	}
	v, err := n.JSON(data)
	return map[string]any{"envelope": head, "object": v}, err
}
