package documents

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

// Getter sends a GET on behalf of a user. It must honor the context and be safe for concurrent
// use. The caller closes the body.
type Getter interface {
	Get(ctx context.Context, u user.Info, path string, header http.Header) (*http.Response, error)
}

// Aggregator is the user on whose behalf this tier fetches documents that it serves to
// everybody. It is kube-aggregator's own user, with full rights, so that the discovery of an
// extension server does not depend on RBAC rules.
var Aggregator user.Info = &user.DefaultInfo{
	Name:   "system:kube-aggregator",
	Groups: []string{user.SystemPrivilegedGroup},
}

// ErrNotFound means that the server answered 404: it has no such document.
var ErrNotFound = errors.New("not found")

// StatusError is an answer with a status other than 200, 304 and 404.
type StatusError struct {
	Code    int
	Message string // of the metav1.Status, or the beginning of the body; one line
}

func (e *StatusError) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("status %d", e.Code)
	}
	return fmt.Sprintf("status %d: %s", e.Code, e.Message)
}

// Tag identifies an answer. The zero Tag matches none.
type Tag struct {
	etag string
	sum  [sha256.Size]byte
}

// ETag returns the ETag header of the answer, or "".
func (t Tag) ETag() string { return t.etag }

// Query is a conditional request.
type Query struct {
	// Path is the path of the document, with a leading slash.
	Path string
	// Accept is the value of the Accept header; empty accepts anything.
	Accept string
	// Known is the tag of the answer that the caller has.
	Known Tag
}

// Answer is the answer of the server.
type Answer struct {
	// Modified reports whether the document has changed. If not, only Tag is set.
	Modified    bool
	Tag         Tag
	ContentType string
	Body        []byte
}

// maxDocument bounds the size of a document. Kubernetes' own OpenAPI v2 document has about 4
// MB, and 30 MB with a thousand large CRDs.
const maxDocument = 128 << 20

// Document fetches a document. Its errors name the path; use errors.Is for ErrNotFound and
// errors.As for *StatusError.
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
		start, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
		return Answer{}, fmt.Errorf("get %s: %w", query.Path, &StatusError{Code: resp.StatusCode, Message: errorMessage(start)})
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err != nil {
		return Answer{}, fmt.Errorf("get %s: %w", query.Path, err)
	}
	if len(body) > maxDocument {
		return Answer{}, fmt.Errorf("get %s: the document is longer than %d bytes", query.Path, maxDocument)
	}
	contentType := resp.Header.Get("Content-Type")
	tag := Tag{etag: resp.Header.Get("ETag"), sum: digest(contentType, body)}
	if tag.sum == query.Known.sum {
		return Answer{Tag: tag}, nil
	}
	return Answer{Modified: true, Tag: tag, ContentType: contentType, Body: body}, nil
}

// maxErrorBody bounds how much of an error's body is read.
const maxErrorBody = 4 << 10

// errorMessage returns the message of an error's body, as a single line.
func errorMessage(body []byte) string {
	var status metav1.Status
	if err := json.Unmarshal(body, &status); err == nil && status.Message != "" {
		return status.Message
	}
	line := strings.Join(strings.Fields(string(body)), " ")
	return line[:min(len(line), 512)]
}

func digest(contentType string, body []byte) [sha256.Size]byte {
	hash := sha256.New()
	hash.Write([]byte(contentType))
	hash.Write([]byte{0})
	hash.Write(body)
	return [sha256.Size]byte(hash.Sum(nil))
}
