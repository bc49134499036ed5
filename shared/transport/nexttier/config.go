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

// Resolver finds the addresses behind a name. [net.DefaultResolver] is one.
type Resolver interface {
	// LookupHost returns IP addresses as strings. It is called from one goroutine
	// at a time for each name.
	LookupHost(ctx context.Context, host string) ([]string, error)
}

// Headers are the names under which an identity is asserted. The first name of
// each list is used; all of them, and the X-Remote- ones in any case, are
// removed from what comes in.
type Headers struct {
	User, UID, Group, ExtraPrefix []string
}

// DefaultHeaders are kube-apiserver's usual ones.
func DefaultHeaders() Headers {
	return Headers{
		User:        []string{"X-Remote-User"},
		UID:         []string{"X-Remote-Uid"},
		Group:       []string{"X-Remote-Group"},
		ExtraPrefix: []string{"X-Remote-Extra-"},
	}
}

// Config says where the next tier is and how to speak to it. Tier, Targets,
// CAFile, CertFile and KeyFile are required; the zero value of every other field
// means its documented default.
type Config struct {
	// Tier is the next tier's name, for messages, logs and metrics: "core".
	Tier string
	// Targets are URLs, https://host:port. Each IP address is a replica; a name
	// stands for as many replicas as it has addresses, looked up again and again.
	Targets []string
	// ServerName is the name that the replicas' certificates are checked for. By
	// default the host of the target.
	ServerName string
	// CAFile holds the PEM certificates that the replicas are checked with.
	// CertFile and KeyFile are the front-proxy client certificate. All three are
	// read again when they change; connections made with the old ones get no new
	// requests then.
	CAFile, CertFile, KeyFile string
	// Headers default to [DefaultHeaders], each list on its own.
	Headers Headers
	// HandOver has requests carry the credential of the client, which the context holds, for
	// the next tier to examine, in place of the user. A request that [peer.As] has made
	// carries none: the next tier knows this one by its certificate.
	HandOver bool
	// MaxInFlight is how many requests one user may have in flight while nobody else
	// has any; the package comment says what all may have. Zero means no bound.
	MaxInFlight int
	// Registerer takes the metrics; nil for none.
	Registerer prometheus.Registerer
	// Logger defaults to klog's.
	Logger klog.Logger
	// OnError writes the answers that are this tier's own, so that they can be
	// audited. By default they are written as JSON.
	OnError func(w http.ResponseWriter, req *http.Request, err *apierrors.StatusError)

	// Resolver defaults to [net.DefaultResolver].
	Resolver Resolver
	// ResolveInterval is the time between two lookups of a name. Default 5 s.
	ResolveInterval time.Duration
	// ProbePath is what replicas are asked for their readiness by. Default
	// /readyz.
	ProbePath string
	// ProbeUser is asserted with a probe, unless HandOver is set. By default a user who may read what
	// every authenticated user may.
	ProbeUser user.Info
	// ProbeInterval is the time between two probes of a replica that answers; one
	// that does not is probed eight times as often. Default 2 s.
	ProbeInterval time.Duration
	// DialTimeout bounds one connection attempt, TLS included. It may be longer
	// than a request waits, for what it makes serves the next one. Default 3 s.
	DialTimeout time.Duration
	// MoveOnAfter bounds the time that one request waits for a connection to one
	// replica while there are others. Default 400 ms.
	MoveOnAfter time.Duration
	// GiveUpAfter bounds all the time that one request waits for connections.
	// Default 900 ms, to answer within a second.
	GiveUpAfter time.Duration
}

// target is one parsed URL of [Config.Targets].
type target struct {
	host string // a name or an IP address
	port string
	// authority is the Host that requests to it carry.
	authority string
	// serverName is what its certificate must be valid for.
	serverName string
}

func (t target) fixed() bool {
	_, err := netip.ParseAddr(t.host)
	return err == nil
}

// completed returns c with its defaults, and everything that is wrong with it.
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
