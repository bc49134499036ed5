package apiserver

import (
	"context"
	"errors"
	"net"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"

	"triune.dev/shared/transport/nexttier"
)

// Next describes the tier behind this one, which is called as a function or through a proxy.
type Next struct {
	// Tier is its name, for messages: "core", "extensions".
	Tier string
	// Handler serves requests whose context has the authenticated user and the request
	// info.
	Handler http.Handler
	// NeedsCredentials adds the client's credential to the context, for Handler.
	NeedsCredentials bool
	// AlwaysServes are group-versions that the tier, or one behind it, always serves.
	// Discovery lists them as Stale until the tier has answered, because a list without
	// them would look complete.
	AlwaysServes []schema.GroupVersion
	// Run maintains the connections to the tier (probes, name resolution) and blocks until
	// ctx is cancelled. It is nil for a tier in the same process.
	Run func(ctx context.Context) error
	// Replicas returns the processes of the tier, to which nexttier.ToReplica restricts
	// requests for Handler. It is nil for a tier in the same process.
	Replicas func() []nexttier.Replica
	// Check returns an error if the tier cannot be reached, for the health check named after
	// the tier. It never makes this tier unready, because what this tier owns works without
	// the next one. It may be nil.
	Check func(req *http.Request) error
}

// Config configures a server.
type Config struct {
	// Tier is the name of this tier: "aggregator", "core", "extensions".
	Tier string
	// Generic holds the parts that k8s.io/apiserver's options configure: authentication,
	// authorization, audit, limits, serving, loopback client, storage. If its SecureServing
	// is nil, the server does not listen and is called through Delegated.
	Generic *genericapiserver.Config
	// Informers are started by a hook after the server listens. They may be nil.
	Informers informers.SharedInformerFactory
	// Next is the tier behind this one. It is nil for the tail of the chain.
	Next *Next
	// Owns returns the handler of a decoded URL path that has no route, if the tier owns it.
	// It may be nil.
	Owns func(path string) (http.Handler, bool)
	// Listed returns further paths for the list at "/", besides those of this tier's routes
	// and of the tiers behind it. It may be nil.
	Listed func() []string
	// TypeConverter returns the type converter of a group-version, for managed fields. It is
	// required if API groups are installed.
	TypeConverter func(schema.GroupVersion) managedfields.TypeConverter
	// NotFound serves owned paths that have no route. If it is nil, the server answers 404
	// with a metav1.Status.
	NotFound http.Handler
	// Unsecured is a listener on a loopback address for requests without TLS and
	// authentication, all of the user system:unsecured. It may be nil.
	Unsecured net.Listener
	// HTTP2Server is the HTTP/2 server of the listener. The default is TriuneHTTP2.
	HTTP2Server HTTP2Server
}

// HTTP2Server names an implementation of HTTP/2.
type HTTP2Server string

// The implementations are [triune.dev/shared/transport/h2] and golang.org/x/net/http2.
const (
	TriuneHTTP2 HTTP2Server = "triune"
	GoHTTP2     HTTP2Server = "go"
)

// CompletedConfig is a validated Config. Only Config.Complete can make one.
type CompletedConfig struct{ *completedConfig }

type completedConfig struct {
	Config
	major, minor int
	equivalents  runtime.EquivalentResourceRegistry
}

// Complete fills in defaults. It returns an error if a required field is missing.
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

// equivalents returns a registry in which resources of different group-versions with the
// same storage prefix are equivalent. Admission webhooks treat them as one resource.
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
