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

// The modes of --authorization-mode that these tiers have.
const (
	RBAC        = "RBAC"
	Node        = "Node"
	AlwaysAllow = "AlwaysAllow"
	AlwaysDeny  = "AlwaysDeny"
)

var modes = []string{Node, RBAC, AlwaysAllow, AlwaysDeny}

// DefaultMaxStaleness is long enough to upgrade core, and short enough that a
// replica cut off from core does not go on for a day with rights that have been
// revoked.
const DefaultMaxStaleness = time.Hour

// DefaultMaxReadStaleness is a night: whoever is called in the morning finds reads that
// go on, and no reader who lost his rights the day before.
const DefaultMaxReadStaleness = 12 * time.Hour

// Options are the flags of authorization.
type Options struct {
	// Modes are asked in this order.
	Modes []string
	// MaxStaleness is the age of the rules beyond which RBAC grants no writes;
	// zero for no limit.
	MaxStaleness time.Duration
	// MaxReadStaleness is the age beyond which it grants no reads either; zero for no
	// limit.
	MaxReadStaleness time.Duration
}

// NewOptions returns the defaults. Unlike kube-apiserver's they do not allow
// everything: a tier that is left at its defaults must not undo what core's flags
// say.
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

// Dependencies are what the modes are made from.
type Dependencies struct {
	// Informers give the rules. RBAC adds its informers to them.
	Informers informers.SharedInformerFactory
	// Age is how old the rules may be. Nil means that they are always current, as
	// they are where core is in the same process.
	Age func() time.Duration
	// Registerer takes the metric of that age; nil for none.
	Registerer prometheus.Registerer
	// Reviews asks core, where core has other modes than Node and RBAC. Nil for a tier
	// that decides alone.
	Reviews authorizationclient.AuthorizationV1Interface
}

// Authorizer decides, and tells what a user may do.
type Authorizer struct {
	authorizer.Authorizer
	authorizer.RuleResolver

	byCore *byCore // nil for a tier that decides alone
}

// Heard takes the settings of core, nil where core publishes none.
func (a *Authorizer) Heard(settings agreement.Settings) {
	if a.byCore != nil {
		a.byCore.heard(settings)
	}
}

// New builds the authorizer of valid options.
func (o *Options) New(deps Dependencies) (*Authorizer, error) {
	var deciders []authorizer.Authorizer
	var resolvers []authorizer.RuleResolver
	known := func() bool { return true }
	for _, mode := range o.Modes {
		made, err := o.mode(mode, deps)
		if err != nil {
			return nil, err
		}
		if byRules, ok := made.(rules); ok {
			known = byRules.known
		}
		deciders = append(deciders, authorizationmetrics.InstrumentedAuthorizer(mode, strings.ToLower(mode), made))
		resolvers = append(resolvers, made)
	}
	if deps.Age != nil && deps.Registerer != nil {
		if err := deps.Registerer.Register(ageGauge(deps.Age)); err != nil {
			return nil, fmt.Errorf("register the age of the authorization data: %w", err)
		}
	}
	a := &Authorizer{Authorizer: union.New(deciders...), RuleResolver: union.NewRuleResolvers(resolvers...)}
	if deps.Reviews != nil && o.followCore() {
		var err error
		if a.byCore, err = newByCore(o.Modes, a.Authorizer, known, deps.Reviews); err != nil {
			return nil, err
		}
		a.Authorizer = a.byCore
	}
	a.Authorizer = union.New(authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup), Tiers(), a.Authorizer)
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
		return newNodes(), nil
	case RBAC:
		if deps.Informers == nil {
			return nil, errors.New("--authorization-mode=RBAC needs a way to core")
		}
		if deps.Age == nil {
			return newRules(deps.Informers, nil, limits{}), nil
		}
		return newRules(deps.Informers, deps.Age, limits{writes: o.MaxStaleness, reads: o.MaxReadStaleness}), nil
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
