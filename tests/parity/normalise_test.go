package parity

import (
	"encoding/base64"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var testNow = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func normal(t *testing.T, doc string) any {
	t.Helper()
	n := &Normaliser{Now: testNow, Hosts: []string{"127.0.0.1:6443"}, Volatile: []string{"items.*.port", "pick"}}
	v, err := n.JSON([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestNormaliserShowsWhatAClientSees(t *testing.T) {
	for _, tc := range []struct{ name, a, b string }{
		{"null and an empty list", `{"items":null}`, `{"items":[]}`},
		{"null and an empty object", `{"data":null}`, `{"data":{}}`},
		{"an empty list and an empty object", `{"data":[]}`, `{"data":{}}`},
		{"null and absent", `{"a":1,"items":null}`, `{"a":1}`},
		{"an empty string and absent", `{"a":1,"b":""}`, `{"a":1}`},
		{"an empty list and absent", `{"a":1,"b":[]}`, `{"a":1}`},
		{"the order of a list", `{"items":["a","b"]}`, `{"items":["b","a"]}`},
		{"the order of a list of objects", `[{"n":1},{"n":2}]`, `[{"n":2},{"n":1}]`},
		{"an item more", `["a"]`, `["a","a"]`},
		{"a number and a string", `{"a":1}`, `{"a":"1"}`},
		{"an integer and a fraction", `{"a":1}`, `{"a":1.0}`},
		{"false and absent", `{"a":1,"b":false}`, `{"a":1}`},
		{"a uid and no uid", `{"uid":"11111111-2222-3333-4444-555555555555"}`, `{"uid":""}`},
		{"a uid and null", `{"uid":"11111111-2222-3333-4444-555555555555"}`, `{"uid":null}`},
		{"a uid and something else", `{"uid":"11111111-2222-3333-4444-555555555555"}`, `{"uid":"x"}`},
		{"a reference to the same and to another uid", `{"a":"11111111-2222-3333-4444-555555555555","b":"11111111-2222-3333-4444-555555555555"}`, `{"a":"11111111-2222-3333-4444-555555555555","b":"11111111-2222-3333-4444-666666666666"}`},
		{"a resource version and none", `{"resourceVersion":"17"}`, `{"resourceVersion":""}`},
		{"a resource version and 0", `{"resourceVersion":"17"}`, `{"resourceVersion":"0"}`},
		{"a resource version and a number", `{"resourceVersion":"17"}`, `{"resourceVersion":17}`},
		{"a resource version and a word", `{"resourceVersion":"17"}`, `{"resourceVersion":"seventeen"}`},
		{"times that were in the request", `{"t":"2024-01-02T03:04:05Z"}`, `{"t":"2024-01-02T03:04:06Z"}`},
		{"a time of now and one of the request", `{"t":"2026-06-01T12:00:01Z"}`, `{"t":"2024-01-02T03:04:05Z"}`},
		{"a time and null", `{"t":"2026-06-01T12:00:01Z"}`, `{"t":null}`},
		{"seconds and microseconds", `{"t":"2026-06-01T12:00:01Z"}`, `{"t":"2026-06-01T12:00:01.000000Z"}`},
		{"UTC and another zone", `{"t":"2026-06-01T12:00:01Z"}`, `{"t":"2026-06-01T14:00:01+02:00"}`},
		{"a message with another name", `{"message":"pods \"a\" not found"}`, `{"message":"pods \"b\" not found"}`},
		{"resource versions that were asked for", `{"message":"resource version: 1"}`, `{"message":"resource version: 2"}`},
		{"another start of a continue token", `{"continue":"` + token(`{"v":"meta.k8s.io/v1","rv":7,"start":"a"}`) + `"}`, `{"continue":"` + token(`{"v":"meta.k8s.io/v1","rv":7,"start":"b"}`) + `"}`},
		{"a continue token and none", `{"continue":"` + token(`{"v":"meta.k8s.io/v1","rv":7,"start":"a"}`) + `"}`, `{"continue":""}`},
		{"a cluster address and None", `{"spec":{"clusterIP":"10.0.0.7"}}`, `{"spec":{"clusterIP":"None"}}`},
		{"a cluster address and one outside of the range", `{"spec":{"clusterIP":"10.0.0.7"}}`, `{"spec":{"clusterIP":"10.1.0.7"}}`},
		{"a volatile value and null", `{"pick":"a"}`, `{"pick":null}`},
		{"a volatile value and absent", `{"pick":"a","x":1}`, `{"x":1}`},
		{"a volatile string and a number", `{"pick":"a"}`, `{"pick":1}`},
		{"a manager more", `{"managedFields":[{"manager":"a"}]}`, `{"managedFields":[{"manager":"a"},{"manager":"a"}]}`},
		{"what a manager owns", `{"managedFields":[{"manager":"a","fieldsV1":{"f:x":{}}}]}`, `{"managedFields":[{"manager":"a","fieldsV1":{"f:y":{}}}]}`},
		{"the order of what is not managed fields", `{"managers":[{"manager":"a"},{"manager":"b"}]}`, `{"managers":[{"manager":"b"},{"manager":"a"}]}`},
		{"a manager of fields", `{"manager":"kubectl"}`, `{"manager":"triune"}`},
		{"the case of a key", `{"apiVersion":"v1"}`, `{"apiversion":"v1"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if cmp.Equal(normal(t, tc.a), normal(t, tc.b)) {
				t.Errorf("%s and %s became equal", tc.a, tc.b)
			}
		})
	}
}

func TestNormaliserHidesWhatServersCannotAgreeOn(t *testing.T) {
	for _, tc := range []struct{ name, a, b string }{
		{"uids", `{"uid":"11111111-2222-3333-4444-555555555555"}`, `{"uid":"aaaaaaaa-2222-3333-4444-555555555555"}`},
		{"resource versions", `{"metadata":{"resourceVersion":"17"}}`, `{"metadata":{"resourceVersion":"1234"}}`},
		{"times of now", `{"creationTimestamp":"2026-06-01T11:59:59Z"}`, `{"creationTimestamp":"2026-06-01T12:00:03Z"}`},
		{"microseconds of now", `{"t":"2026-06-01T11:59:59.123456Z"}`, `{"t":"2026-06-01T12:00:03.000001Z"}`},
		{"in which second managers wrote", `{"managedFields":[{"manager":"b","time":"2026-06-01T12:00:00Z"},{"manager":"a","time":"2026-06-01T12:00:01Z"}]}`, `{"managedFields":[{"manager":"a","time":"2026-06-01T12:00:00Z"},{"manager":"b","time":"2026-06-01T12:00:00Z"}]}`},
		{"the program's own name", `{"manager":"kube-apiserver"}`, `{"manager":"triune"}`},
		{"the order of keys", `{"a":1,"b":2}`, `{"b":2,"a":1}`},
		{"the server's address", `{"message":"https://127.0.0.1:6443/x"}`, `{"message":"https://<server>/x"}`},
		{"a resource version in a message", `{"message":"too old resource version: 10 (2345)"}`, `{"message":"too old resource version: 10 (99)"}`},
		{"the revision in a continue token", `{"continue":"` + token(`{"v":"meta.k8s.io/v1","rv":7,"start":"a"}`) + `"}`, `{"continue":"` + token(`{"v":"meta.k8s.io/v1","rv":8,"start":"a"}`) + `"}`},
		{"an allocated address", `{"spec":{"clusterIP":"10.0.0.7","clusterIPs":["10.0.0.7"]}}`, `{"spec":{"clusterIP":"10.0.0.9","clusterIPs":["10.0.0.9"]}}`},
		{"what a case declares volatile", `{"items":[{"port":1}],"pick":"a"}`, `{"items":[{"port":2}],"pick":"b"}`},
		{"a token", `{"token":"eyJhbGciOiJ9.eyJhdWQiOlsi.Zm9v"}`, `{"token":"eyJhbGciOiJ8.eyJhdWQiOlsj.YmFy"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(normal(t, tc.a), normal(t, tc.b)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNormaliserRefusesWhatIsNoDocument(t *testing.T) {
	for _, doc := range []string{``, `{`, `{}{}`, `{"a":1}x`} {
		if v, err := new(Normaliser).JSON([]byte(doc)); err == nil {
			t.Errorf("%q became %v", doc, v)
		}
	}
}

func token(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
