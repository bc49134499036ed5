package openapi

import (
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/kube-openapi/pkg/common"

	"triune.dev/shared/server/resources"
)

// Extra is a part of the documents that is not in the resource table: paths without resources
// that kube-apiserver describes as well. See [Version] and the functions below.
type Extra struct{ container }

// Version describes /version.
func Version() Extra {
	return single("/version", &route{
		path:        "/version/",
		operation:   "getCodeVersion",
		description: "get the version information for this server",
		consumes:    []string{"application/json"},
		produces:    []string{"application/json"},
		writes:      version.Info{},
	})
}

// GroupList describes the discovery document /apis, for the tier that serves it. The serializer
// determines its media types.
func GroupList(serializer runtime.NegotiatedSerializer) Extra {
	return single(resources.GroupPrefix, discovery(serializer, resources.GroupPrefix,
		"getAPIVersions", "get available API versions", metav1.APIGroupList{}))
}

// LegacyVersions describes the discovery document /api.
func LegacyVersions(serializer runtime.NegotiatedSerializer) Extra {
	return single(resources.LegacyPrefix, discovery(serializer, resources.LegacyPrefix,
		"getAPIVersions", "get available API versions", metav1.APIVersions{}))
}

// IssuerConfiguration describes the OpenID configuration of the issuer of ServiceAccount tokens
// (KEP-1393).
func IssuerConfiguration() Extra {
	return single("/.well-known/openid-configuration", &route{
		path:        "/.well-known/openid-configuration/",
		operation:   "getServiceAccountIssuerOpenIDConfiguration",
		description: "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'",
		produces:    []string{"application/json"},
		writes:      "",
	})
}

// IssuerKeys describes the key set of the issuer of ServiceAccount tokens (KEP-1393).
func IssuerKeys() Extra {
	return single("/openid/v1/jwks", &route{
		path:        "/openid/v1/jwks/",
		operation:   "getServiceAccountIssuerOpenIDKeyset",
		description: "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)",
		produces:    []string{"application/jwk-set+json"},
		writes:      "",
	})
}

// Logs describes /logs, which --enable-logs-handler enables.
func Logs() Extra {
	list := &route{method: http.MethodGet, path: "/logs/", operation: "logFileListHandler"}
	file := &route{
		method: http.MethodGet, path: "/logs/{logpath:*}", operation: "logFileHandler",
		parameters: []common.Parameter{pathParameter("logpath", "path to the log")},
	}
	return Extra{container{root: "/logs", routes: func() ([]common.Route, error) {
		return []common.Route{file, list}, nil
	}}}
}

// single returns a container with one GET, whose only response is 200.
func single(root string, r *route) Extra {
	r.method = http.MethodGet
	r.responses = []common.StatusCodeResponse{response{http.StatusOK, http.StatusText(http.StatusOK), r.writes}}
	return Extra{container{root: root, routes: func() ([]common.Route, error) {
		return []common.Route{r}, nil
	}}}
}

// discovery returns the route of a discovery document.
func discovery(serializer runtime.NegotiatedSerializer, root, operation, description string, writes any) *route {
	mediaTypes, _ := negotiation.MediaTypesForSerializer(serializer)
	return &route{
		path:        root + "/",
		operation:   operation,
		description: description,
		consumes:    mediaTypes,
		produces:    mediaTypes,
		writes:      writes,
	}
}

// containersOf returns the containers of a table: one for the discovery document of each group,
// and one for each group-version.
func containersOf(t *resources.Table) []container {
	var containers []container
	for _, group := range t.Groups() {
		if group.Prefix != resources.LegacyPrefix {
			root := group.Prefix + "/" + group.Name
			containers = append(containers, single(root, discovery(group.Versions[0].Serializer, root,
				"getAPIGroup", "get information of a group", metav1.APIGroup{})).container)
		}
		for _, version := range group.Versions {
			containers = append(containers, container{
				root:   version.Root,
				routes: func() ([]common.Route, error) { return routesOf(version) },
			})
		}
	}
	return containers
}

// routesOf describes all routes of a group-version, including its discovery document.
func routesOf(version *resources.GroupVersion) ([]common.Route, error) {
	list := discovery(version.Serializer, version.Root, "getAPIResources", "get available resources", metav1.APIResourceList{})
	all, err := single(version.Root, list).routes()
	if err != nil {
		return nil, err
	}
	options := optionParameters{}
	for _, resource := range version.Resources() {
		samples, err := samplesOf(version, resource)
		if err != nil {
			return nil, err
		}
		for _, route := range resource.Routes {
			one, err := operation{version: version, resource: resource, route: route, samples: samples, options: options}.describe()
			if err != nil {
				return nil, err
			}
			all = append(all, one)
		}
	}
	return all, nil
}
