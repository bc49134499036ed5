package fetch

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Handler is a Getter that calls h, in this goroutine. The user is where a tier
// looks for it: in the request's context.
func Handler(h http.Handler) Getter { return handlerGetter{h} }

type handlerGetter struct{ handler http.Handler }

func (g handlerGetter) Get(ctx context.Context, who user.Info, path string, header http.Header) (resp *http.Response, err error) {
	ctx = request.WithUser(audit.WithAuditContext(ctx), who)
	ctx = request.WithRequestInfo(ctx, &request.RequestInfo{Path: path, Verb: "get"})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	if header != nil {
		req.Header = header.Clone()
	}
	// What a server would have filled in from the wire.
	req.RequestURI = path
	req.RemoteAddr = "127.0.0.1:0"
	answer := &recorder{header: http.Header{}}
	defer func() {
		if caught := recover(); caught != nil {
			resp, err = nil, fmt.Errorf("the handler panicked: %v", caught)
		}
	}()
	g.handler.ServeHTTP(answer, req)
	if err := ctx.Err(); err != nil && answer.code == 0 {
		return nil, err
	}
	if answer.overflow {
		return nil, fmt.Errorf("the document is longer than %d bytes", maxDocument)
	}
	answer.WriteHeader(http.StatusOK)
	return &http.Response{
		StatusCode:    answer.code,
		Header:        answer.header,
		Body:          io.NopCloser(&answer.body),
		ContentLength: int64(answer.body.Len()),
		Request:       req,
	}, nil
}

// recorder keeps a response in memory. It can be flushed, for handlers that ask.
type recorder struct {
	header   http.Header
	code     int
	body     bytes.Buffer
	overflow bool
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(code int) {
	if r.code == 0 && code >= http.StatusOK {
		r.code = code
		r.header = r.header.Clone()
	}
}

func (r *recorder) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if r.body.Len()+len(p) > maxDocument {
		r.overflow = true
		return 0, io.ErrShortWrite
	}
	return r.body.Write(p)
}

func (r *recorder) Flush() { r.WriteHeader(http.StatusOK) }
