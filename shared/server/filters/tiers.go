package filters

import (
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"triune.dev/shared/transport/tierclient"
)

// What a tier asks in its own name is part of the work that kube-apiserver does for a request
// before it counts it: it authenticates and authorizes. So it has no place in a queue. The
// tier that asks bounds how much of it is under way, see package nexttier.

func isTier(u user.Info) bool { return strings.HasPrefix(u.GetName(), tierclient.UserPrefix) }

// asPrivileged returns whom priority and fairness takes u for: a tier for a member of
// system:masters, which is exempt.
func asPrivileged(u user.Info) user.Info {
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
