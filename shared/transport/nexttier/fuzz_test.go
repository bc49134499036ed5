package nexttier

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/user"
)

// FuzzIdentity asserts a user to the next tier. The next tier must see the same user, or the proxy
// must refuse, whatever headers the client sends.
func FuzzIdentity(f *testing.F) {
	f.Add("alice", "1", "developers", "admins", "scopes", "read", "X-Remote-User", "admin")
	f.Add("Ünï €", "", "", "a b", "example.com/Mixed%20Case", "ü", "x-remote-group", "system:masters")
	f.Add("a\nb", "u", "g", "h", "k", "v", "X-REMOTE-EXTRA-scopes", "write")
	f.Add("a", "u", "g", "h", "\x00\xff", "", "X-Remote-Extra-%73copes", "write")
	f.Add("system:masters", "u\r", "g\x7f", "h", "", "v", "Impersonate-User", "admin")
	f.Add("admin ", "", "", "", "", "", "", "")
	f.Add(" a", "u ", "\tg", "h\t", "k k", " v", "X-Remote-Uid", "0")
	names := Headers{User: []string{"X-Remote-User"}, UID: []string{"X-Remote-Uid"}, Group: []string{"X-Remote-Group"}, ExtraPrefix: []string{"X-Remote-Extra-"}}
	reader, err := headerrequest.New(names.User, names.UID, names.Group, names.ExtraPrefix)
	if err != nil {
		f.Fatal(err)
	}
	sender := newIdentity(names)
	f.Fuzz(func(t *testing.T, name, uid, one, other, key, value, forged, forgery string) {
		u := &user.DefaultInfo{Name: name, UID: uid, Groups: []string{one, other}, Extra: map[string][]string{key: {value}}}
		header := http.Header{}
		if !sender.isIdentityHeader(http.CanonicalHeaderKey(forged)) {
			header[forged] = []string{forgery}
		}
		if err := sender.setHeaders(header, u); err != nil {
			return
		}
		// What HTTP may change: spaces around values and the case of names.
		sent := http.Header{}
		for name, values := range header {
			for _, value := range values {
				sent.Add(name, strings.Trim(value, " \t"))
			}
		}
		response, ok, err := reader.AuthenticateRequest(&http.Request{Header: sent, URL: &url.URL{}})
		if err != nil || !ok {
			t.Fatalf("nobody is read of %q, asserted for %+v: %v", sent, u, err)
		}
		got := response.User
		// An empty group does not exist.
		groups := slices.DeleteFunc(slices.Clone(u.Groups), func(group string) bool { return group == "" })
		if got.GetName() != name || got.GetUID() != uid || !slices.Equal(got.GetGroups(), groups) || !maps.EqualFunc(got.GetExtra(), u.Extra, slices.Equal) {
			t.Errorf("%#v is read as %#v", u, got)
		}
	})
}
