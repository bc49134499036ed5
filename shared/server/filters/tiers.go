package filters

import (
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"triune.dev/shared/transport/tierclient"
)

// The requests that a tier makes in its own name authenticate and authorize requests of
// clients. In kube-apiserver that work is done before a request is counted, so these
// requests are not queued. The tier that makes them bounds how many are in flight, see
// package nexttier.

func isTier(u user.Info) bool { return strings.HasPrefix(u.GetName(), tierclient.UserPrefix) }

// exemptTier returns the user by which priority and fairness classifies the requests of u.
// A tier becomes a member of system:masters, which is exempt.
func exemptTier(u user.Info) user.Info {
	if u == nil || !isTier(u) {
		return u
	}
	return &user.DefaultInfo{Name: u.GetName(), Groups: []string{user.SystemPrivilegedGroup}}
}

// exceptTiers gives the requests of tiers to next, and all others to limited.
func exceptTiers(limited, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if u, ok := apirequest.UserFrom(req.Context()); ok && isTier(u) {
			next.ServeHTTP(w, req)
			return
		}
		limited.ServeHTTP(w, req)
	})
}
