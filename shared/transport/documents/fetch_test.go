package documents_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"k8s.io/apiserver/pkg/endpoints/request"

	"triune.dev/shared/transport/documents"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func handler(f http.HandlerFunc) documents.Getter { return documents.Handler(f) }

func TestDocument(t *testing.T) {
	tests := []struct {
		name   string
		serve  http.HandlerFunc
		body   string
		status int   // of a StatusError
		err    error // matched with errors.Is
		failed bool  // any other error
	}{
		{name: "200", serve: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "document") }, body: "document"},
		{name: "200 without a body", serve: func(http.ResponseWriter, *http.Request) {}, body: ""},
		{name: "404", serve: http.NotFound, err: documents.ErrNotFound, failed: true},
		{name: "503", serve: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "away", 503) }, status: 503, failed: true},
		{name: "503 with a Status", serve: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(503)
			fmt.Fprint(w, "{\n  \"kind\": \"Status\",\n  \"message\": \"away\"\n}\n")
		}, status: 503, failed: true},
		{name: "304 that nobody asked for", serve: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(304) }, failed: true},
		{name: "a panic is an error", serve: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, failed: true},
		{name: "too long", serve: func(w http.ResponseWriter, _ *http.Request) {
			for range 130 {
				w.Write(make([]byte, 1<<20))
			}
		}, failed: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			answer, err := documents.Document(t.Context(), handler(test.serve), documents.Query{Path: "/x"})
			if (err != nil) != test.failed {
				t.Fatalf("error %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), "/x") {
				t.Errorf("the error %q does not name the path", err)
			}
			if test.err != nil && !errors.Is(err, test.err) {
				t.Errorf("error %v, want %v", err, test.err)
			}
			var status *documents.StatusError
			if errors.As(err, &status) != (test.status != 0) || (status != nil && (status.Code != test.status || status.Message != "away")) {
				t.Errorf("status error %v, want code %d", status, test.status)
			}
			if err == nil && (!answer.Modified || string(answer.Body) != test.body) {
				t.Errorf("got %q, modified %t", answer.Body, answer.Modified)
			}
		})
	}
}

// TestUnchangedDocumentIsNotReturned: a server with ETags does not send it, and one without is
// compared by content.
func TestUnchangedDocumentIsNotReturned(t *testing.T) {
	for _, withETag := range []bool{true, false} {
		t.Run(fmt.Sprintf("ETag %t", withETag), func(t *testing.T) {
			body, asked := "one", 0
			server := handler(func(w http.ResponseWriter, req *http.Request) {
				asked++
				if withETag {
					tag := `"` + body + `"`
					w.Header().Set("ETag", tag)
					if req.Header.Get("If-None-Match") == tag {
						w.WriteHeader(http.StatusNotModified)
						return
					}
				}
				fmt.Fprint(w, body)
			})
			query := documents.Query{Path: "/x"}
			for i, want := range []struct {
				body     string
				modified bool
			}{{"one", true}, {"one", false}, {"two", true}, {"two", false}} {
				body = want.body
				answer, err := documents.Document(t.Context(), server, query)
				if err != nil {
					t.Fatal(err)
				}
				if answer.Modified != want.modified || (want.modified && string(answer.Body) != want.body) {
					t.Errorf("answer %d: %q, modified %t", i, answer.Body, answer.Modified)
				}
				query.Known = answer.Tag
			}
			if asked != 4 {
				t.Errorf("asked %d times", asked)
			}
		})
	}
}

func TestHandlerReceivesUserAndRequestInfo(t *testing.T) {
	server := handler(func(w http.ResponseWriter, req *http.Request) {
		u, _ := request.UserFrom(req.Context())
		info, _ := request.RequestInfoFrom(req.Context())
		fmt.Fprintf(w, "%s %s %s %s", u.GetName(), info.Verb, info.Path, req.Header.Get("Accept"))
	})
	answer, err := documents.Document(t.Context(), server, documents.Query{Path: "/apis", Accept: "application/json"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(answer.Body), "system:kube-aggregator get /apis application/json"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestContextCancelsTheRequest(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server := handler(func(w http.ResponseWriter, req *http.Request) {
		cancel()
		<-req.Context().Done()
	})
	if _, err := documents.Document(ctx, server, documents.Query{Path: "/x"}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}
