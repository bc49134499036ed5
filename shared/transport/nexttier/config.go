package nexttier

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/klog/v2"
)

// Resolver resolves host names, as [net.DefaultResolver] does.
type Resolver interface {
	// LookupHost returns IP addresses. Calls for the same name are not concurrent.
	LookupHost(ctx context.Context, host string) ([]string, error)
}

// Headers are the names of identity headers. The first name of each list is sent; all of them, and
// always those with the prefix X-Remote-, are removed from incoming requests.
type Headers struct {
	User, UID, Group, ExtraPrefix []string
}

// DefaultHeaders returns the usual names of kube-apiserver.
func DefaultHeaders() Headers {
	return Headers{
		User:        []string{"X-Remote-User"},
		UID:         []string{"X-Remote-Uid"},
		Group:       []string{"X-Remote-Group"},
		ExtraPrefix: []string{"X-Remote-Extra-"},
	}
}

// Config configures a [Proxy]. Tier, Targets, CAFile, CertFile and KeyFile are required; the zero
// values of all other fields select their defaults.
type Config struct {
	// Tier is the name of the next tier in messages, logs and metrics, such as "core".
	Tier string
	// Targets are URLs of the form https://host:port. An IP address is a single replica; a
	// name has one replica per address, and is resolved periodically.
	Targets []string
	// ServerName is the expected name in the certificates of the replicas. It defaults to the
	// host of the target.
	ServerName string
	// CAFile holds the CA certificates of the replicas. CertFile and KeyFile hold the
	// front-proxy client certificate. All three are PEM files and are reloaded when they
	// change; older connections then get no new requests.
	CAFile, CertFile, KeyFile string
	// Headers are the identity headers. Each empty list defaults to that of [DefaultHeaders].
	Headers Headers
	// ForwardCredentials makes requests carry the credential of the client from the context
	// instead of its user, for the next tier to authenticate. Requests made through
	// tierclient.As carry no credential: the client certificate identifies this tier.
	ForwardCredentials bool
	// MaxInFlight is the number of requests that one user may have in flight while there are
	// no others; see the package comment. Zero means unlimited.
	MaxInFlight int
	// Registerer registers the metrics, unless it is nil.
	Registerer prometheus.Registerer
	// Logger defaults to klog.Background().
	Logger klog.Logger
	// OnError writes the error responses of this tier, so that they can be audited. The
	// default writes JSON.
	OnError func(w http.ResponseWriter, req *http.Request, err *apierrors.StatusError)

	// Resolver defaults to [net.DefaultResolver].
	Resolver Resolver
	// ResolveInterval is the interval between two lookups of a name. Default 5 s.
	ResolveInterval time.Duration
	// ProbePath is the path of readiness probes. Default /readyz.
	ProbePath string
	// ProbeUser is asserted with probes, unless ForwardCredentials is set. The default has
	// the permissions of any authenticated user.
	ProbeUser user.Info
	// ProbeInterval is the interval between two probes of a replica that answers; others are
	// probed eight times as often. Default 2 s.
	ProbeInterval time.Duration
	// DialTimeout bounds a connection attempt, including TLS. It may be longer than the wait
	// of a request, because later requests use the connection. Default 3 s.
	DialTimeout time.Duration
	// MoveOnAfter bounds the wait of a request for a connection to one replica while there are
	// others. Default 400 ms.
	MoveOnAfter time.Duration
	// GiveUpAfter bounds the total wait of a request for connections. Default 900 ms, to
	// answer within a second.
	GiveUpAfter time.Duration
}

// target is one parsed URL of [Config.Targets].
type target struct {
	host string // a name or an IP address
	port string
	// authority is the Host of requests to it.
	authority string
	// serverName is the expected name in its certificate.
	serverName string
}

func (t target) fixed() bool {
	_, err := netip.ParseAddr(t.host)
	return err == nil
}

// completed returns c with its defaults, or all problems of c.
func (c Config) completed() (Config, []target, error) {
	var problems []error
	require := func(ok bool, what string) {
		if !ok {
			problems = append(problems, errors.New(what))
		}
	}
	require(c.Tier != "", "the next tier needs a name")
	require(len(c.Targets) > 0, "the next tier needs a target URL")
	require(c.CAFile != "", "the next tier needs a CA file")
	require(c.CertFile != "" && c.KeyFile != "", "the next tier needs a front-proxy certificate and key file")
	require(c.MaxInFlight >= 0, "the limit of requests in flight cannot be negative")
	var targets []target
	for _, raw := range c.Targets {
		t, err := parseTarget(raw, c.ServerName)
		if err != nil {
			problems = append(problems, err)
		}
		targets = append(targets, t)
	}
	if len(problems) > 0 {
		return c, nil, errors.Join(problems...)
	}

	defaults := DefaultHeaders()
	setDefault(&c.Headers.User, defaults.User)
	setDefault(&c.Headers.UID, defaults.UID)
	setDefault(&c.Headers.Group, defaults.Group)
	setDefault(&c.Headers.ExtraPrefix, defaults.ExtraPrefix)
	if c.Logger.GetSink() == nil {
		c.Logger = klog.Background()
	}
	c.Logger = c.Logger.WithValues("tier", c.Tier)
	if c.OnError == nil {
		c.OnError = writeStatus
	}
	if c.Resolver == nil {
		c.Resolver = net.DefaultResolver
	}
	if c.ProbePath == "" {
		c.ProbePath = "/readyz"
	}
	if c.ProbeUser == nil {
		c.ProbeUser = &user.DefaultInfo{Name: "system:triune:probe", Groups: []string{user.AllAuthenticated}}
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.ResolveInterval, 5 * time.Second},
		{&c.ProbeInterval, 2 * time.Second},
		{&c.DialTimeout, 3 * time.Second},
		{&c.MoveOnAfter, 400 * time.Millisecond},
		{&c.GiveUpAfter, 900 * time.Millisecond},
	} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	return c, targets, nil
}

func setDefault(list *[]string, value []string) {
	if len(*list) == 0 {
		*list = value
	}
}

func parseTarget(raw, serverName string) (target, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return target{}, fmt.Errorf("target %q: %w", raw, err)
	case u.Scheme != "https":
		return target{}, fmt.Errorf("target %q: only https can assert an identity", raw)
	case u.Hostname() == "":
		return target{}, fmt.Errorf("target %q has no host", raw)
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return target{}, fmt.Errorf("target %q must be https://host:port and no more", raw)
	}
	t := target{host: u.Hostname(), port: u.Port(), serverName: serverName}
	if t.port == "" {
		t.port = "443"
	}
	t.authority = net.JoinHostPort(t.host, t.port)
	if t.serverName == "" {
		t.serverName = t.host
	}
	return t, nil
}
