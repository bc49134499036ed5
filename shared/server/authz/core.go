package authz

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"triune.dev/shared/server/agreement"
)

// ModesSetting names the modes of core among its settings.
const ModesSetting = "--authorization-mode"

// reviewTTL is how long an answer of core is used again: the default of k8s.io/apiserver
// for servers that delegate authorization.
const reviewTTL = 10 * time.Second

// Settings are what these options say of authorization. Modes that only abbreviate what
// core decides have no entry: where core has others, it is asked.
func (o *Options) Settings() agreement.Settings {
	if o.followCore() {
		return nil
	}
	return agreement.Settings{ModesSetting: Modes(o.Modes)}
}

// Modes is the setting of modes that are asked in this order.
func Modes(modes []string) string { return strings.Join(modes, ",") }

func (o *Options) followCore() bool {
	return !slices.ContainsFunc(o.Modes, func(mode string) bool { return mode != Node && mode != RBAC })
}

// byCore decides as core does: by rules of its own while core says that it has the same
// modes, and else by asking core with a SubjectAccessReview, as it does about what the
// mode Node of core alone knows.
type byCore struct {
	own     string // modes of local
	local   authorizer.Authorizer
	reviews authorizer.Authorizer
	// known reports whether local has rules, by which it could grant something.
	known func() bool
	// nodes is set if Node is one of the modes.
	nodes *nodes
	// core is the modes of core; nil until it has said so.
	core atomic.Pointer[string]
}

func newByCore(own []string, local authorizer.Authorizer, known func() bool, client authorizationclient.AuthorizationV1Interface) (*byCore, error) {
	reviews, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: client,
		AllowCacheTTL:             reviewTTL,
		DenyCacheTTL:              reviewTTL,
		// The way to core tries its replicas by itself.
		WebhookRetryBackoff: &wait.Backoff{Steps: 1},
	}.New()
	if err != nil {
		return nil, fmt.Errorf("review access at core: %w", err)
	}
	b := &byCore{own: Modes(own), local: local, known: known, reviews: reviews}
	if slices.Contains(own, Node) {
		made := newNodes()
		b.nodes = &made
	}
	return b, nil
}

// Authorize implements authorizer.Authorizer.
func (b *byCore) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if b.asksCore() || b.nodes != nil && b.nodes.needsGraph(a) {
		return b.reviews.Authorize(ctx, a)
	}
	return b.local.Authorize(ctx, a)
}

// asksCore is true while core has not told its modes, too, for they may grant less than
// these rules; where nothing has been heard of core at all there are no rules.
func (b *byCore) asksCore() bool {
	core := b.core.Load()
	if core == nil {
		return b.known()
	}
	return *core != b.own
}

// heard takes the settings of core; nil are those of an earlier release, which all tiers
// were told alike by hand.
func (b *byCore) heard(settings agreement.Settings) {
	modes, ok := settings[ModesSetting]
	if !ok {
		modes = b.own
	}
	b.core.Store(&modes)
}
