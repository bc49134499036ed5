package h2

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// FuzzRequestsMatchGo sends the same header fields to Go's server and to ours,
// which must agree whether that is a request, and which: what one of them reads
// differently is what a proxy and the server behind it could be made to disagree about.
// The fields are lines, names and values parted by the first "=", pseudo-header fields
// among them. Nothing is said of how a request is refused, and ours may be stricter in one
// way: a length that a request without a body cannot have is refused.
func FuzzRequestsMatchGo(f *testing.F) {
	const get = ":method=GET\n:scheme=https\n:authority=example.com\n:path=/api?x=1\n"
	for _, seed := range []string{
		get,
		get + "accept=a\naccept=b\ncookie=a=b\ncookie=c=d",
		get + "host=other.example",
		get + "content-length=0", get + "content-length=1", get + "content-length=0\ncontent-length=00", get + "content-length=+0",
		get + "te=trailers", get + "te=gzip", get + "connection=close", get + "transfer-encoding=chunked", get + "upgrade=h2c",
		get + "trailer=X-One,Content-Length,x two", get + "expect=100-continue",
		get + "X-Upper=1", get + "x-nul=a\x00b", get + "x-cr=a\rb", get + "x space=1", get + "=1", get + "x-utf=ä", get + ":path=/other",
		get + ":status=200", get + ":protocol=websocket", "accept=first\n" + get,
		":method=GET\n:scheme=https\n:path=/", ":method=GET\n:scheme=ftp\n:authority=a\n:path=/", ":method=GET\n:authority=a\n:path=/",
		":method=G T\n:scheme=https\n:authority=a\n:path=/", ":method=get\n:scheme=http\n:authority=a\n:path=/", ":method=\n:scheme=https\n:path=/",
		":method=GET\n:scheme=https\n:authority=a\n:path=", ":method=GET\n:scheme=https\n:authority=a\n:path=api", ":method=OPTIONS\n:scheme=https\n:authority=a\n:path=*",
		":method=GET\n:scheme=https\n:authority=a\n:path=//a/../b%2f%2e;c?%zz#d", ":method=GET\n:scheme=https\n:authority=a\n:path=https://b/c", ":method=GET\n:scheme=https\n:authority=a\n:path=/%zz",
		":method=CONNECT\n:authority=a:1", ":method=CONNECT\n:scheme=https\n:authority=a\n:path=/", ":method=GET\n:scheme=https\n:authority=u@a b\n:path=/",
	} {
		f.Add(seed)
	}
	tell := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Host")
		_, _ = io.WriteString(w, dump(r))
	})
	servers := map[string]*httptest.Server{"ours": ours(f, tell), "Go's": gos(f, tell)}
	f.Fuzz(func(t *testing.T, lines string) {
		if len(lines) > 16<<10 {
			return // limits of size are tested elsewhere
		}
		var fields []string
		wrongLength := false
		for line := range strings.SplitSeq(lines, "\n") {
			name, value, _ := strings.Cut(line, "=")
			fields = append(fields, name, value)
			wrongLength = wrongLength || name == "content-length" && value != "0"
		}
		got, want := seenBy(t, servers["ours"], fields), seenBy(t, servers["Go's"], fields)
		if got != want && (got != "" || !wrongLength) {
			t.Errorf("%q: ours\n%s\nGo's\n%s", fields, got, want)
		}
	})
}

// seenBy sends a request and returns what its handler saw; "" if none did.
func seenBy(t *testing.T, s *httptest.Server, fields []string) string {
	p := dial(t, s)
	defer p.conn.NetConn().Close()
	p.ok(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.fields(fields...), EndStream: true, EndHeaders: true}))
	var seen strings.Builder
	for {
		f, err := p.framer.ReadFrame()
		if err != nil {
			t.Fatalf("%q: %v", fields, err)
		}
		switch f := f.(type) {
		case *http2.HeadersFrame:
			head, err := p.decoder.DecodeFull(f.HeaderBlockFragment())
			p.ok(err)
			if head[0].Value != "200" {
				return "" // refused with an answer
			}
			if f.StreamEnded() {
				return seen.String()
			}
		case *http2.DataFrame:
			seen.Write(f.Data())
			if f.StreamEnded() {
				return seen.String()
			}
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return ""
		}
	}
}
