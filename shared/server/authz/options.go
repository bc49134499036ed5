package authz

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authorizationmetrics "k8s.io/apiserver/pkg/authorization/metrics"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/client-go/informers"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"triune.dev/shared/server/agreement"
)

// The modes of --authorization-mode in these tiers.
const (
	RBAC        = "RBAC"
	Node        = "Node"
	AlwaysAllow = "AlwaysAllow"
	AlwaysDeny  = "AlwaysDeny"
)

var modes = []string{Node, RBAC, AlwaysAllow, AlwaysDeny}

// DefaultMaxStaleness is long enough to upgrade core, and short enough that a replica that
// is cut off from core does not grant revoked permissions for a day.
const DefaultMaxStaleness = time.Hour

// DefaultMaxReadStaleness lasts a night: an operator who is called in the morning can still
// read, but permissions that were revoked the day before have expired.
const DefaultMaxReadStaleness = 12 * time.Hour

// Options are the flags of authorization.
type Options struct {
	// Modes are the authorizers, in the order in which they are asked.
	Modes []string
	// MaxStaleness is the age of the rules beyond which RBAC grants no writes. Zero is no
	// limit.
	MaxStaleness time.Duration
	// MaxReadStaleness is the age beyond which RBAC grants no reads either. Zero is no limit.
	MaxReadStaleness time.Duration
}

// NewOptions returns the defaults. Unlike kube-apiserver's they do not allow everything,
// because a tier with default flags must not override core's.
func NewOptions() *Options {
	return &Options{Modes: []string{Node, RBAC}, MaxStaleness: DefaultMaxStaleness, MaxReadStaleness: DefaultMaxReadStaleness}
}

// AddFlags adds the flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.Modes, "authorization-mode", o.Modes,
		"Ordered list of authorizers for the secure port: the first with an opinion decides. Where core has others than Node and RBAC, core is asked in their place. Comma-separated list of: "+strings.Join(modes, ",")+".")
	fs.DurationVar(&o.MaxStaleness, "authorization-max-staleness", o.MaxStaleness,
		"Age of the RBAC rules, which are read from core, beyond which they grant no writes. "+
			"The rules age while core cannot be watched. 0 sets no limit.")
	fs.DurationVar(&o.MaxReadStaleness, "authorization-max-read-staleness", o.MaxReadStaleness,
		"Age of the RBAC rules beyond which they grant no reads either. 0 sets no limit.")
}

// Validate returns every problem, each naming its flag.
func (o *Options) Validate() []error {
	var problems []error
	if len(o.Modes) == 0 {
		problems = append(problems, errors.New("--authorization-mode must name at least one mode"))
	}
	for i, mode := range o.Modes {
		if !slices.Contains(modes, mode) {
			problems = append(problems, fmt.Errorf("--authorization-mode=%s is not one of %s", mode, strings.Join(modes, ",")))
		} else if slices.Contains(o.Modes[:i], mode) {
			problems = append(problems, fmt.Errorf("--authorization-mode names %s more than once", mode))
		}
	}
	if o.MaxStaleness < 0 {
		problems = append(problems, fmt.Errorf("--authorization-max-staleness=%s must not be negative", o.MaxStaleness))
	}
	if o.MaxReadStaleness < 0 {
		problems = append(problems, fmt.Errorf("--authorization-max-read-staleness=%s must not be negative", o.MaxReadStaleness))
	}
	return problems
}

// Dependencies are passed to the modes.
type Dependencies struct {
	// Informers read the rules. RBAC adds its informers to the factory.
	Informers informers.SharedInformerFactory
	// Age returns how old the rules may be. If it is nil, they are always current, as when
	// core is in the same process.
	Age func() time.Duration
	// Registerer registers the metric of that age; nil means none.
	Registerer prometheus.Registerer
	// Reviews makes SubjectAccessReviews if core has other modes than Node and RBAC. It is
	// nil for a tier that never asks core.
	Reviews authorizationclient.AuthorizationV1Interface
}

// Authorizer authorizes requests and resolves the rules of users.
type Authorizer struct {
	authorizer.Authorizer
	authorizer.RuleResolver

	core *coreAuthorizer // nil for a tier that never asks core
}

// SetCoreSettings informs the authorizer of core's settings, which are nil if core publishes
// none. It is safe for concurrent use.
func (a *Authorizer) SetCoreSettings(settings agreement.Settings) {
	if a.core != nil {
		a.core.setCoreSettings(settings)
	}
}

// New builds the authorizer of valid options.
func (o *Options) New(deps Dependencies) (*Authorizer, error) {
	var authorizers []authorizer.Authorizer
	var resolvers []authorizer.RuleResolver
	synced := func() bool { return true }
	for _, mode := range o.Modes {
		m, err := o.mode(mode, deps)
		if err != nil {
			return nil, err
		}
		if r, ok := m.(rbacMode); ok {
			synced = r.hasSynced
		}
		authorizers = append(authorizers, authorizationmetrics.InstrumentedAuthorizer(mode, strings.ToLower(mode), m))
		resolvers = append(resolvers, m)
	}
	if deps.Age != nil && deps.Registerer != nil {
		if err := deps.Registerer.Register(ageGauge(deps.Age)); err != nil {
			return nil, fmt.Errorf("register the age of the authorization data: %w", err)
		}
	}
	a := &Authorizer{Authorizer: union.New(authorizers...), RuleResolver: union.NewRuleResolvers(resolvers...)}
	if deps.Reviews != nil && o.followsCore() {
		var err error
		if a.core, err = newCoreAuthorizer(o.Modes, a.Authorizer, synced, deps.Reviews); err != nil {
			return nil, err
		}
		a.Authorizer = a.core
	}
	a.Authorizer = union.New(authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup), Tiers(), awaitRules(a.Authorizer, synced, startPatience))
	return a, nil
}

// mode is one entry of the ordered list.
type mode interface {
	authorizer.Authorizer
	authorizer.RuleResolver
}

func (o *Options) mode(name string, deps Dependencies) (mode, error) {
	switch name {
	case Node:
		return newNodeMode(), nil
	case RBAC:
		if deps.Informers == nil {
			return nil, errors.New("--authorization-mode=RBAC needs a client of core")
		}
		if deps.Age == nil {
			return newRBACMode(deps.Informers, nil, limits{}), nil
		}
		return newRBACMode(deps.Informers, deps.Age, limits{writes: o.MaxStaleness, reads: o.MaxReadStaleness}), nil
	case AlwaysAllow:
		return authorizerfactory.NewAlwaysAllowAuthorizer(), nil
	case AlwaysDeny:
		return authorizerfactory.NewAlwaysDenyAuthorizer(), nil
	}
	return nil, fmt.Errorf("--authorization-mode=%s is not one of %s", name, strings.Join(modes, ","))
}

func ageGauge(age func() time.Duration) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "triune_authorization_data_age_seconds",
		Help: "Time for which the RBAC rules have not been watched at core; 0 while they are.",
	}, func() float64 { return age().Seconds() })
}
