package apiserver

import (
	"context"
	"errors"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
)

// Next is the tier behind this one, reached by a function call or by a proxy.
type Next struct {
	// Tier is its name, for messages: "core", "extensions".
	Tier string
	// Handler takes requests whose context holds the authenticated user and the
	// request info.
	Handler http.Handler
	// HandOver has Handler find the credential of the client in the context, too.
	HandOver bool
	// Serves are group-versions that the tier, or one behind it, always serves.
	// Discovery lists them as Stale until it has heard what is really served there:
	// a list without them would look complete.
	Serves []schema.GroupVersion
	// Run keeps the way to the tier in repair (probes, name resolution) and
	// blocks until ctx ends. Nil when there is nothing to keep.
	Run func(ctx context.Context) error
	// Check reports whether the tier can be reached, for the health check named
	// after it. It informs and never makes this tier unready: what this tier owns
	// works without the next one. Nil when it is always there.
	Check func(req *http.Request) error
}

// Config is what a tier is made of. The zero value of a field is explained with
// it.
type Config struct {
	// Tier is the name of this tier: "aggregator", "core", "extensions".
	Tier string
	// Generic holds what k8s.io/apiserver's options fill: authentication,
	// authorization, audit, limits, serving, loopback client, storage. Its
	// SecureServing may be nil: the server then does not listen and is reached
	// through Delegated alone.
	Generic *genericapiserver.Config
	// Informers are started by a hook after the server listens. Nil for none.
	Informers informers.SharedInformerFactory
	// Next is the tier behind this one; nil for the tail of the chain.
	Next *Next
	// Owns says of a decoded URL path, beyond the paths of the tier's routes,
	// whether this tier serves it and with what. Nil owns nothing more.
	Owns func(path string) (http.Handler, bool)
	// Listed returns paths that "/" lists beyond those of the tier's routes and of
	// the tiers behind it. Nil lists nothing more.
	Listed func() []string
	// TypeConverter gives the typed form of objects of a group-version to the
	// managed-fields machinery. Required if API groups are installed.
	TypeConverter func(schema.GroupVersion) managedfields.TypeConverter
	// NotFound answers an owned path that no route matches. Nil answers 404 with
	// a metav1.Status.
	NotFound http.Handler
	// HTTP2Server is the HTTP/2 server of the listener. "" is TriuneHTTP2.
	HTTP2Server HTTP2Server
}

// HTTP2Server names an implementation of HTTP/2.
type HTTP2Server string

// The implementations there are: [triune.dev/shared/transport/h2], and golang.org/x/net/http2.
const (
	TriuneHTTP2 HTTP2Server = "triune"
	GoHTTP2     HTTP2Server = "go"
)

// CompletedConfig can only be made by Config.Complete.
type CompletedConfig struct{ *completedConfig }

type completedConfig struct {
	Config
	major, minor int
	equivalents  runtime.EquivalentResourceRegistry
}

// Complete fills in what follows from the rest. It is an error for a required
// field to be missing.
func (c Config) Complete() (CompletedConfig, error) {
	g := c.Generic
	switch {
	case c.Tier == "":
		return CompletedConfig{}, errors.New("a tier needs a name")
	case g == nil || g.Serializer == nil:
		return CompletedConfig{}, errors.New("a tier needs a serializer")
	case g.Authentication.Authenticator == nil:
		return CompletedConfig{}, errors.New("a tier needs an authenticator")
	case g.Authorization.Authorizer == nil:
		return CompletedConfig{}, errors.New("a tier needs an authorizer")
	case g.RequestInfoResolver == nil:
		g.RequestInfoResolver = genericapiserver.NewRequestInfoResolver(g)
	}
	if g.EquivalentResourceRegistry == nil {
		g.EquivalentResourceRegistry = equivalents(g)
	}
	completed := &completedConfig{Config: c, equivalents: g.EquivalentResourceRegistry}
	if g.EffectiveVersion == nil {
		return CompletedConfig{}, errors.New("a tier needs a version")
	}
	version := g.EffectiveVersion.EmulationVersion()
	completed.major, completed.minor = int(version.Major()), int(version.Minor())
	return CompletedConfig{completed}, nil
}

// equivalents tells resources of different group-versions that are stored in one
// place apart from others: they are one resource to an admission webhook.
func equivalents(g *genericapiserver.Config) runtime.EquivalentResourceRegistry {
	if g.RESTOptionsGetter == nil {
		return runtime.NewEquivalentResourceRegistry()
	}
	return runtime.NewEquivalentResourceRegistryWithIdentity(func(resource schema.GroupResource) string {
		options, err := g.RESTOptionsGetter.GetRESTOptions(resource, nil)
		if err != nil {
			return ""
		}
		return options.ResourcePrefix
	})
}
