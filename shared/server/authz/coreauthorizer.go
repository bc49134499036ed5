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

// ModesSetting is the name of the setting that holds core's modes.
const ModesSetting = "--authorization-mode"

// reviewTTL is how long a decision of core is cached. It is the default of k8s.io/apiserver
// for delegated authorization.
const reviewTTL = 10 * time.Second

// Settings returns the settings to compare with core. Modes that stand for core's decision
// have no entry, because core is asked if its modes differ.
func (o *Options) Settings() agreement.Settings {
	if o.followsCore() {
		return nil
	}
	return agreement.Settings{ModesSetting: FormatModes(o.Modes)}
}

// FormatModes returns the value of ModesSetting for modes in this order.
func FormatModes(modes []string) string { return strings.Join(modes, ",") }

// followsCore reports whether all modes stand for core's decision.
func (o *Options) followsCore() bool {
	return !slices.ContainsFunc(o.Modes, func(mode string) bool { return mode != Node && mode != RBAC })
}

// coreAuthorizer decides as core does. While core has the same modes, it evaluates them
// locally. Otherwise, and for requests of nodes that need core's graph, it asks core with a
// SubjectAccessReview.
type coreAuthorizer struct {
	localModes string
	local      authorizer.Authorizer
	reviews    authorizer.Authorizer
	// rulesSynced reports whether local has read its rules. Before, it grants nothing.
	rulesSynced func() bool
	// node is nil unless Node is one of the modes.
	node *nodeMode
	// coreModes is nil until core's settings are known.
	coreModes atomic.Pointer[string]
}

func newCoreAuthorizer(modes []string, local authorizer.Authorizer, rulesSynced func() bool, client authorizationclient.AuthorizationV1Interface) (*coreAuthorizer, error) {
	reviews, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: client,
		AllowCacheTTL:             reviewTTL,
		DenyCacheTTL:              reviewTTL,
		// The transport to core tries its replicas itself.
		WebhookRetryBackoff: &wait.Backoff{Steps: 1},
	}.New()
	if err != nil {
		return nil, fmt.Errorf("review access at core: %w", err)
	}
	c := &coreAuthorizer{localModes: FormatModes(modes), local: local, rulesSynced: rulesSynced, reviews: reviews}
	if slices.Contains(modes, Node) {
		node := newNodeMode()
		c.node = &node
	}
	return c, nil
}

// Authorize implements authorizer.Authorizer.
func (c *coreAuthorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if c.modesDiffer() || c.node != nil && c.node.needsGraph(a) {
		return c.reviews.Authorize(ctx, a)
	}
	return c.local.Authorize(ctx, a)
}

// modesDiffer reports whether core has, or may have, other modes than local. While core's
// modes are not known, they may allow less than local's rules. If local has no rules yet
// either, core is not available, and local denies with a reason.
func (c *coreAuthorizer) modesDiffer() bool {
	core := c.coreModes.Load()
	if core == nil {
		return c.rulesSynced()
	}
	return *core != c.localModes
}

// setCoreSettings stores the modes of core. An earlier release has no settings; then core is
// assumed to have the same modes.
func (c *coreAuthorizer) setCoreSettings(settings agreement.Settings) {
	modes, ok := settings[ModesSetting]
	if !ok {
		modes = c.localModes
	}
	c.coreModes.Store(&modes)
}
