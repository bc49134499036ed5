package authn

import (
	"errors"
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
)

// ErrBareFrontProxy is why a request is refused that comes over a front-proxy
// certificate and names no user.
//
// kube-apiserver lets such a request fall through to the anonymous user, or to
// a bearer token beside it. But a front proxy always speaks for somebody: a
// request without a user is a broken proxy, or a proxy that has been talked into
// dropping a header, and must not be served as somebody else's.
//
// A certificate is a front proxy's when the front-proxy CA vouches for it and
// its common name is an allowed one, or no names are configured.
var ErrBareFrontProxy = errors.New("a front-proxy certificate without a user header")

func namesUser(config *authenticatorfactory.RequestHeaderConfig, header http.Header) bool {
	return slices.ContainsFunc(config.UsernameHeaders.Value(), func(name string) bool { return header.Get(name) != "" })
}
