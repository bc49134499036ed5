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

var errAnonymous = errors.New("anonymous requests are not allowed here")

// RefuseAnonymous returns an authenticator that refuses the anonymous user asserted by a
// front proxy, unless file (--authentication-config, or empty) or enabled (--anonymous-auth)
// allow anonymous requests.
//
// kube-apiserver trusts such a proxy. But then the setting of the first tier would apply to
// all tiers.
func RefuseAnonymous(next authenticator.Request, file string, enabled bool) (authenticator.Request, error) {
	config, err := loadConfiguration(file, enabled)
	if err != nil {
		return nil, fmt.Errorf("--authentication-config=%s: %w", file, err)
	}
	return anonymousFilter{next, config.anonymous}, nil
}

type anonymousFilter struct {
	next   authenticator.Request
	config *apiserverapi.AnonymousAuthConfig
}

// AuthenticateRequest implements authenticator.Request.
func (a anonymousFilter) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	response, ok, err := a.next.AuthenticateRequest(req)
	path := "" // the request of a TokenReview has none
	if req.URL != nil {
		path = req.URL.Path
	}
	if ok && response.User.GetName() == user.Anonymous && !a.allows(path) {
		return nil, false, errAnonymous
	}
	return response, ok, err
}

func (a anonymousFilter) allows(path string) bool {
	conditions := a.config.Conditions
	return a.config.Enabled && (len(conditions) == 0 ||
		slices.ContainsFunc(conditions, func(c apiserverapi.AnonymousAuthCondition) bool { return c.Path == path }))
}
