package authn

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// errAnonymous is why a request is refused that a front proxy sends for nobody.
var errAnonymous = errors.New("anonymous requests are not let in here")

// RefuseAnonymous returns an authenticator that refuses whom a front proxy calls anonymous,
// where file (--authentication-config, or empty) and allowed (--anonymous-auth) let no
// anonymous request in.
//
// kube-apiserver believes such a proxy. But between tiers that would let the setting of the
// first one decide for all of them.
func RefuseAnonymous(next authenticator.Request, file string, allowed bool) (authenticator.Request, error) {
	config, err := configured(file, allowed)
	if err != nil {
		return nil, fmt.Errorf("--authentication-config=%s: %w", file, err)
	}
	return anonymity{next, config.anonymous}, nil
}

type anonymity struct {
	next    authenticator.Request
	allowed *apiserverapi.AnonymousAuthConfig
}

// AuthenticateRequest implements authenticator.Request.
func (a anonymity) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	response, ok, err := a.next.AuthenticateRequest(req)
	path := "" // a TokenReview has none
	if req.URL != nil {
		path = req.URL.Path
	}
	if ok && response.User.GetName() == user.Anonymous && !a.allows(path) {
		return nil, false, errAnonymous
	}
	return response, ok, err
}

func (a anonymity) allows(path string) bool {
	conditions := a.allowed.Conditions
	return a.allowed.Enabled && (len(conditions) == 0 ||
		slices.ContainsFunc(conditions, func(c apiserverapi.AnonymousAuthCondition) bool { return c.Path == path }))
}
