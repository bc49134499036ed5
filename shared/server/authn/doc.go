// Package authn authenticates requests in the tiers that hold neither ServiceAccounts nor
// Secrets. Core wraps some of it around kube-apiserver's own authenticators.
//
// Credentials are tried in kube-apiserver's order, and the first authenticator that
// recognizes one decides:
//
//  1. the front proxy: a client certificate of the front-proxy CA, and the user
//     in headers;
//  2. a client certificate of the client CA: common name and organizations;
//  3. a token of the static token file;
//  4. any other bearer token (ServiceAccounts, bootstrap tokens, OIDC, webhooks):
//     a TokenReview by core, which is cached for seconds, and for minutes while core is
//     not available;
//  5. no credential: the anonymous user, if that is enabled.
//
// A token that cannot be reviewed is answered with 503, see package outage. A wrong
// credential is answered with 401 and never becomes anonymous. A front-proxy certificate
// without a user is a wrong credential, see [ErrFrontProxyWithoutUser].
//
// Before all of these, core authenticates the other tiers by their certificates, and
// examines the credentials that the aggregator hands over, see [AuthenticateTiers].
//
// [Options] are the flags of the aggregator and the extensions tier; their ApplyTo is called
// once at start-up. Core calls [CacheCertificates], [RefuseAnonymous] and
// [AuthenticateTiers]. All authenticators are safe for concurrent use.
package authn
