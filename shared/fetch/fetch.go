package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Getter sends a GET in the name of a user. It must obey the context's deadline
// and be safe for concurrent use. The caller closes the body.
type Getter interface {
	Get(ctx context.Context, who user.Info, path string, header http.Header) (*http.Response, error)
}

// Aggregator is the user in whose name this tier asks for documents that it
// serves to everybody: kube-aggregator's own name, with every right, so that an
// extension server's discovery does not depend on its RBAC rules.
var Aggregator user.Info = &user.DefaultInfo{
	Name:   "system:kube-aggregator",
	Groups: []string{user.SystemPrivilegedGroup},
}

// ErrNotFound is returned for a 404: the server is there and does not have such a
// document.
var ErrNotFound = errors.New("not found")

// StatusError is any other answer than 200, 304 and 404.
type StatusError struct {
	Code    int
	Message string // of its metav1.Status, or the beginning of its body; one line
}

func (e *StatusError) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("status %d", e.Code)
	}
	return fmt.Sprintf("status %d: %s", e.Code, e.Message)
}

// Tag identifies an answer. Its zero value matches none.
type Tag struct {
	etag string
	sum  [sha256.Size]byte
}

// ETag returns what the server called its answer, or "".
func (t Tag) ETag() string { return t.etag }

// Query is one conditional question.
type Query struct {
	// Path of the document, starting with a slash.
	Path string
	// Accept is the value of the header of that name; empty accepts anything.
	Accept string
	// Known is the tag of the answer the caller has.
	Known Tag
}

// Answer is what the server said.
type Answer struct {
	// Modified is false where the caller's answer still holds; then only Tag is set.
	Modified    bool
	Tag         Tag
	ContentType string
	Body        []byte
}

// maxDocument bounds what is read of one document. Kubernetes' own OpenAPI v2 is
// about 4 MB; a thousand large CRDs make it 30.
const maxDocument = 128 << 20

// Document puts a question. Errors name the path; ErrNotFound and *StatusError
// can be told apart with errors.Is and errors.As.
func Document(ctx context.Context, from Getter, query Query) (Answer, error) {
	header := http.Header{}
	if query.Accept != "" {
		header.Set("Accept", query.Accept)
	}
	if query.Known.etag != "" {
		header.Set("If-None-Match", query.Known.etag)
	}
	resp, err := from.Get(ctx, Aggregator, query.Path, header)
	if err != nil {
		return Answer{}, fmt.Errorf("get %s: %w", query.Path, err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotModified:
		if query.Known.etag == "" {
			return Answer{}, fmt.Errorf("get %s: status 304 to an unconditional request", query.Path)
		}
		return Answer{Tag: query.Known}, nil
	case http.StatusNotFound:
		return Answer{}, fmt.Errorf("get %s: %w", query.Path, ErrNotFound)
	default:
		start, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
		return Answer{}, fmt.Errorf("get %s: %w", query.Path, &StatusError{Code: resp.StatusCode, Message: messageOf(start)})
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err != nil {
		return Answer{}, fmt.Errorf("get %s: %w", query.Path, err)
	}
	if len(body) > maxDocument {
		return Answer{}, fmt.Errorf("get %s: the document is longer than %d bytes", query.Path, maxDocument)
	}
	contentType := resp.Header.Get("Content-Type")
	tag := Tag{etag: resp.Header.Get("ETag"), sum: sumOf(contentType, body)}
	if tag.sum == query.Known.sum {
		return Answer{Tag: tag}, nil
	}
	return Answer{Modified: true, Tag: tag, ContentType: contentType, Body: body}, nil
}

// maxRefusal bounds what is read of an answer that is no document.
const maxRefusal = 4 << 10

// messageOf is what a refusal says, in a line that can be logged.
func messageOf(body []byte) string {
	var status metav1.Status
	if err := json.Unmarshal(body, &status); err == nil && status.Message != "" {
		return status.Message
	}
	line := strings.Join(strings.Fields(string(body)), " ")
	return line[:min(len(line), 512)]
}

func sumOf(contentType string, body []byte) [sha256.Size]byte {
	hash := sha256.New()
	hash.Write([]byte(contentType))
	hash.Write([]byte{0})
	hash.Write(body)
	return [sha256.Size]byte(hash.Sum(nil))
}
