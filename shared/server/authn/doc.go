// Package authn finds out who sends a request, for the tiers that hold neither
// ServiceAccounts nor Secrets.
//
// A credential is looked at in kube-apiserver's order, and the first
// authenticator that recognizes it decides:
//
//  1. the front proxy: a client certificate of the front-proxy CA, and the user
//     in headers;
//  2. a client certificate of the client CA: common name and organizations;
//  3. a token of the static token file;
//  4. any other bearer token (ServiceAccounts, bootstrap tokens, OIDC, webhooks):
//     a TokenReview to core, whose answer is kept for some seconds, and for some
//     minutes while core is away;
//  5. nothing at all: the anonymous user, where it is allowed.
//
// A token that nobody can be asked about is 503, see package outage.
// A credential that is wrong is 401 and never anonymous. A certificate of the
// front-proxy CA that comes without a user is a credential that is wrong, see
// [ErrBareFrontProxy].
//
// Before all of these, core knows the other tiers by their certificates, and examines
// the credentials that the aggregator hands over, see [AdmitTiers].
package authn
