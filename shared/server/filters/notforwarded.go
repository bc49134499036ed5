package filters

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// AnswerNotForwarded returns a function that answers a request which this tier does not own and could
// not pass on. The answer is audited here, because no other tier has seen the request. g
// need not be complete before the first answer.
func AnswerNotForwarded(g *genericapiserver.Config) func(http.ResponseWriter, *http.Request, *apierrors.StatusError) {
	return func(w http.ResponseWriter, req *http.Request, err *apierrors.StatusError) {
		answer := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			responsewriters.ErrorNegotiated(err, g.Serializer, schema.GroupVersion{}, w, req)
		})
		genericapifilters.WithAudit(answer, g.AuditBackend, g.AuditPolicyRuleEvaluator, g.LongRunningFunc).ServeHTTP(w, req)
	}
}
