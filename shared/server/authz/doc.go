// Package authz authorizes requests in the tiers that do not serve RBAC themselves.
//
// The modes of --authorization-mode are asked in the configured order. The first that has an
// opinion decides; if none has one, the request is denied. Members of the group
// system:masters are allowed everything before that.
//
// Node and RBAC stand for core's decision. While core has the same modes, they are evaluated
// here. If core has others (Webhook, ABAC, an AuthorizationConfiguration), every decision is
// a SubjectAccessReview by core, which is cached for seconds.
//
// RBAC reads its rules from core with informers, and keeps the last state while core is not
// available, so that a tier works without core. Rules that are too old grant no writes, see
// [Freshness]. While a server starts, requests wait for the rules, see [AwaitRules].
//
// [Options] are the flags of the aggregator and the extensions tier, and make their
// [Authorizer] once at start-up. Core calls [CacheRules], [AwaitRules] and [Tiers]. All
// authorizers are safe for concurrent use.
package authz
