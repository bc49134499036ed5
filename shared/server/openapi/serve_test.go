package openapi

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
)

const autoscaling = "/openapi/v3/apis/autoscaling/v1"

func body(t *testing.T, res *http.Response) []byte {
	t.Helper()
	content, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// hashedURL returns the URL of a document in the index.
func hashedURL(t *testing.T, d *Documents, path string) string {
	t.Helper()
	var index Index
	if err := json.Unmarshal(body(t, get(d, PathV3)), &index); err != nil {
		t.Fatal(err)
	}
	return index.Paths[path].ServerRelativeURL
}

// TestNegotiation: the response has the client's most preferred supported media type (RFC 9110,
// section 12.5.1); names with @ are answered with those without.
func TestNegotiation(t *testing.T) {
	documents := newTier(t).Documents()
	const (
		v2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
		v3 = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
	)
	for name, test := range map[string]struct {
		path, accept string
		code         int
		mediaType    string
	}{
		"v2 nothing asked":       {PathV2, "", 200, "application/json"},
		"v2 anything":            {PathV2, "*/*", 200, "application/json"},
		"v2 protobuf":            {PathV2, v2, 200, v2},
		"v2 protobuf, old name":  {PathV2, "application/com.github.proto-openapi.spec.v2@v1.0+protobuf", 200, v2},
		"v2 as v3":               {PathV2, v3, 406, ""},
		"v2 html":                {PathV2, "text/html", 406, ""},
		"v3 nothing asked":       {autoscaling, "", 200, "application/json"},
		"v3 any application":     {autoscaling, "application/*", 200, "application/json"},
		"v3 protobuf":            {autoscaling, v3, 200, v3},
		"v3 protobuf, old name":  {autoscaling, "application/com.github.proto-openapi.spec.v3@v1.0+protobuf", 200, v3},
		"v3 by weight":           {autoscaling, "application/json;q=0.1, " + v3, 200, v3},
		"v3 html":                {autoscaling, "text/html", 406, ""},
		"v3 html, else anything": {autoscaling, "text/html, */*;q=0.1", 200, "application/json"},
		"the index is JSON only": {PathV3, v3, 200, "application/json"},
		"no such group-version":  {PathV3 + "/apis/autoscaling/v9", "", 404, ""},
		"a slash too much":       {autoscaling + "/", "", 404, ""},
		"below v2":               {PathV2 + "/", "", 404, "text/plain; charset=utf-8"},
	} {
		t.Run(name, func(t *testing.T) {
			res := get(documents, test.path, "Accept", test.accept)
			if res.StatusCode != test.code {
				t.Fatalf("got %s, want %d", res.Status, test.code)
			}
			if got := res.Header.Get("Content-Type"); got != test.mediaType {
				t.Errorf("got %q, want %q", got, test.mediaType)
			}
		})
	}
}

// TestProtobufSaysTheSame: both encodings contain the same document.
func TestProtobufSaysTheSame(t *testing.T) {
	documents := newTier(t).Documents()
	t.Run("v3", func(t *testing.T) {
		var got openapi_v3.Document
		if err := proto.Unmarshal(body(t, get(documents, autoscaling, "Accept", mediaTypesV3[1].answer)), &got); err != nil {
			t.Fatal(err)
		}
		want, err := openapi_v3.ParseDocument(body(t, get(documents, autoscaling)))
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(want, &got) || len(got.Paths.Path) == 0 {
			t.Error("protobuf and JSON differ")
		}
	})
	t.Run("v2", func(t *testing.T) {
		var got openapi_v2.Document
		if err := proto.Unmarshal(body(t, get(documents, PathV2, "Accept", mediaTypesV2[1].answer)), &got); err != nil {
			t.Fatal(err)
		}
		want, err := openapi_v2.ParseDocument(body(t, get(documents, PathV2)))
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(want, &got) || len(got.Paths.Path) == 0 {
			t.Error("protobuf and JSON differ")
		}
	})
}

// TestHashedURL: the URLs of the index may be cached forever; a URL with another hash redirects
// to the right one (KEP-2896).
func TestHashedURL(t *testing.T) {
	documents := newTier(t).Documents()
	url := hashedURL(t, documents, "apis/autoscaling/v1")
	if !strings.HasPrefix(url, autoscaling+"?hash=") {
		t.Fatalf("index: %q", url)
	}
	res := get(documents, url)
	if res.StatusCode != 200 || res.Header.Get("Cache-Control") != "public, immutable" || res.Header.Get("Expires") == "" {
		t.Errorf("with the hash: %s, %v", res.Status, res.Header)
	}
	if _, hash, _ := strings.Cut(url, "?hash="); res.Header.Get("Etag") != strconv.Quote(hash) || hashOf(body(t, res)) != hash {
		t.Errorf("hash %s, ETag %s", hash, res.Header.Get("Etag"))
	}
	for name, d := range map[string]*Documents{"known hash": documents, "hash not known yet": newTier(t).Documents()} {
		if res := get(d, autoscaling+"?hash=ABC"); res.StatusCode != 301 || res.Header.Get("Location") != url {
			t.Errorf("%s, with another hash: %s to %q, want %q", name, res.Status, res.Header.Get("Location"), url)
		}
	}
	if res := get(documents, autoscaling); res.Header.Get("Cache-Control") != "" {
		t.Errorf("without a hash: may be cached: %v", res.Header)
	}
}

// TestConditional: a client that has the document gets 304 (RFC 9110, section 13.1.2), without
// a build if the hash is known.
func TestConditional(t *testing.T) {
	for _, path := range []string{PathV2, PathV3, autoscaling} {
		documents := newTier(t).Documents()
		tag := get(documents, path).Header.Get("Etag")
		for header, want := range map[string]int{
			tag: 304, "W/" + tag: 304, `"x", ` + tag: 304, "*": 304, `"x"`: 200, strings.Trim(tag, `"`): 200,
		} {
			res := get(documents, path, "If-None-Match", header)
			if res.StatusCode != want || res.Header.Get("Etag") != tag {
				t.Errorf("%s, If-None-Match %s: %s, ETag %s", path, header, res.Status, res.Header.Get("Etag"))
			}
			if got := body(t, res); want == 304 && len(got) > 0 {
				t.Errorf("%s: 304 with %d bytes", path, len(got))
			}
		}
	}
	built := 0
	documents := NewDocuments()
	documents.SetV3("x", Source{Tag: "1", Build: func() ([]byte, error) { built++; return []byte("{}"), nil }})
	if res := get(documents, PathV3+"/x", "If-None-Match", `"1"`); res.StatusCode != 304 || built > 0 {
		t.Errorf("%s, built %d times", res.Status, built)
	}
}

// TestCompression: clients that accept gzip get the stored bytes; others get the content.
func TestCompression(t *testing.T) {
	documents := newTier(t).Documents()
	plain := body(t, get(documents, autoscaling))
	for header, compressed := range map[string]bool{
		"gzip": true, "deflate, gzip;q=0.5": true, "GZIP": true,
		"": false, "identity": false, "gzip;q=0": false, "gzip; q=0.0": false, "br": false,
	} {
		res := get(documents, autoscaling, "Accept-Encoding", header)
		if got := res.Header.Get("Content-Encoding") == "gzip"; got != compressed {
			t.Errorf("Accept-Encoding %q: compressed %t", header, got)
			continue
		}
		content := body(t, res)
		if compressed {
			r, err := gzip.NewReader(bytes.NewReader(content))
			if err != nil {
				t.Fatal(err)
			}
			if content, err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(content, plain) {
			t.Errorf("Accept-Encoding %q: other content", header)
		}
		if vary := res.Header.Values("Vary"); strings.Join(vary, ",") != "Accept,Accept-Encoding" {
			t.Errorf("Vary: %q", vary)
		}
	}
}

// TestHead: HEAD returns the headers of GET without a body.
func TestHead(t *testing.T) {
	documents := newTier(t).Documents()
	w := httptest.NewRecorder()
	documents.ServeHTTP(w, httptest.NewRequest(http.MethodHead, autoscaling, nil))
	want := get(documents, autoscaling)
	if w.Code != 200 || w.Body.Len() > 0 || w.Header().Get("Content-Length") != want.Header.Get("Content-Length") {
		t.Errorf("%d, %d bytes, headers %v", w.Code, w.Body.Len(), w.Header())
	}
}

// TestFailingSource: a document that cannot be built is answered with 503 and missing from the
// index; all others are served.
func TestFailingSource(t *testing.T) {
	documents := newTier(t).Documents()
	documents.SetV3("apis/broken/v1", Source{Build: func() ([]byte, error) { return nil, errors.New("broken") }})
	for _, path := range []string{"/apis/broken/v1", "/apis/broken/v1?hash=1"} {
		if res := get(documents, PathV3+path); res.StatusCode != 503 {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
	if url := hashedURL(t, documents, "apis/broken/v1"); url != "" {
		t.Errorf("in the index: %s", url)
	}
	if res := get(documents, hashedURL(t, documents, "apis/autoscaling/v1")); res.StatusCode != 200 {
		t.Errorf("the others: %s", res.Status)
	}
	if res := get(NewDocuments(), PathV2); res.StatusCode != 404 {
		t.Errorf("no v2 at all: %s", res.Status)
	}
}

// TestDocumentsComeAndGo: the index reflects documents that are set and deleted while requests
// are served.
func TestDocumentsComeAndGo(t *testing.T) {
	documents := newTier(t).Documents()
	for _, tag := range []string{"1", "2"} {
		documents.SetV3("apis/example.com/v1", Source{Tag: tag, Build: func() ([]byte, error) {
			return []byte(`{"openapi":"3.0.0"}`), nil
		}})
		if got, want := hashedURL(t, documents, "apis/example.com/v1"), PathV3+"/apis/example.com/v1?hash="+tag; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if res := get(documents, PathV3+"/apis/example.com/v1"); res.Header.Get("Etag") != strconv.Quote(tag) {
			t.Errorf("ETag %s, want %q", res.Header.Get("Etag"), tag)
		}
	}
	documents.DeleteV3("apis/example.com/v1")
	if got := hashedURL(t, documents, "apis/example.com/v1"); got != "" {
		t.Errorf("deleted, but in the index: %s", got)
	}
	if res := get(documents, PathV3+"/apis/example.com/v1"); res.StatusCode != 404 {
		t.Errorf("deleted: %s", res.Status)
	}
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for range 20 {
				if i%2 == 0 {
					documents.SetV3("apis/example.com/v"+strconv.Itoa(i), Source{Tag: "1", Build: func() ([]byte, error) { return []byte("{}"), nil }})
					documents.DeleteV3("apis/example.com/v" + strconv.Itoa(i))
				} else if get(documents, PathV3).StatusCode != 200 {
					t.Error("the index is missing")
				}
			}
		})
	}
	group.Wait()
}
