// Package authz decides who may do what, for the tiers that do not serve RBAC
// themselves.
//
// The modes of --authorization-mode are asked in the order given; the first that
// has an opinion decides, and where none has one the request is denied. Before
// all of them comes the group system:masters, which may do anything.
//
// Node and RBAC stand for what core decides: while core says that these are its modes,
// too, they are evaluated here, and where core has others (Webhook, ABAC, an
// AuthorizationConfiguration) every decision is a SubjectAccessReview to core, remembered
// for seconds.
//
// The rules are core's objects. They are read with informers, and the last state
// is kept while core is away: what this tier owns works without core. Rules that
// are too old to be trusted with writes are refused them, see [Freshness].
package authz
