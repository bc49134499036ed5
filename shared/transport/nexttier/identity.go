package nexttier

import (
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
	"k8s.io/apiserver/pkg/authentication/user"
)

// identity sets and removes identity headers.
type identity struct {
	names Headers
	// exact and prefixes are the canonical names to remove from incoming requests.
	exact    map[string]struct{}
	prefixes []string
}

func newIdentity(h Headers) *identity {
	i := &identity{exact: map[string]struct{}{}}
	canonical := func(names []string) []string {
		out := make([]string, len(names))
		for i, name := range names {
			out[i] = textproto.CanonicalMIMEHeaderKey(name)
		}
		return out
	}
	i.names = Headers{User: canonical(h.User), UID: canonical(h.UID), Group: canonical(h.Group), ExtraPrefix: canonical(h.ExtraPrefix)}
	for _, names := range [][]string{i.names.User, i.names.UID, i.names.Group} {
		for _, name := range names {
			i.exact[name] = struct{}{}
		}
	}
	i.prefixes = append([]string{"X-Remote-"}, i.names.ExtraPrefix...)
	return i
}

// isIdentityHeader reports whether only a front proxy may send a header of this canonical name.
func (i *identity) isIdentityHeader(name string) bool {
	if _, ok := i.exact[name]; ok {
		return true
	}
	for _, prefix := range i.prefixes {
		// Invalid names are not canonicalized, so compare prefixes case-insensitively.
		if len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix) {
			return true
		}
	}
	return false
}

// CheckUser returns an error if headers cannot represent u: it has no name, or a value with
// characters that are invalid in headers. Omitting such a value would change the identity.
func CheckUser(u user.Info) error {
	name := u.GetName()
	switch {
	case name == "":
		return errors.New("the user has no name")
	case !isValidValue(name), !isValidValue(u.GetUID()), !areValidValues(u.GetGroups()):
		return errors.New("the user's name, UID or groups have characters that no header can carry")
	}
	for key, values := range u.GetExtra() {
		if !areValidValues(values) {
			return fmt.Errorf("the user's extra %q has characters that no header can carry", key)
		}
	}
	return nil
}

// setHeaders sets the headers that assert u.
func (i *identity) setHeaders(h http.Header, u user.Info) error {
	if err := CheckUser(u); err != nil {
		return err
	}
	h[i.names.User[0]] = []string{u.GetName()}
	if uid := u.GetUID(); uid != "" {
		h[i.names.UID[0]] = []string{uid}
	}
	if groups := u.GetGroups(); len(groups) > 0 {
		h[i.names.Group[0]] = slices.Clip(groups)
	}
	for key, values := range u.GetExtra() {
		if len(values) > 0 {
			name := textproto.CanonicalMIMEHeaderKey(i.names.ExtraPrefix[0] + escapeExtraKey(key))
			// Clip it: appending must not modify the user if two keys have the same name.
			h[name] = append(slices.Clip(h[name]), values...)
		}
	}
	return nil
}

// isValidValue reports whether a header value arrives unchanged. HTTP/1.1, which upgraded
// connections use, trims spaces (RFC 9112, section 5.1): "admin " would become "admin".
func isValidValue(value string) bool {
	return httpguts.ValidHeaderFieldValue(value) && strings.Trim(value, " \t") == value
}

func areValidValues(values []string) bool {
	return !slices.ContainsFunc(values, func(v string) bool { return !isValidValue(v) })
}

// escapeExtraKey escapes a key of the user's extra for use in a header name. The receiver
// converts the name to lower case and then decodes %XX, so upper case is escaped, too.
func escapeExtraKey(key string) string {
	const hex = "0123456789ABCDEF"
	escaped := make([]byte, 0, 64)
	for i := range len(key) {
		c := key[i]
		if c != '%' && (c < 'A' || c > 'Z') && httpguts.IsTokenRune(rune(c)) {
			escaped = append(escaped, c)
		} else {
			escaped = append(escaped, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(escaped)
}
