// Package tokens makes bearer tokens for tests: it signs JSON Web Tokens, serves the
// documents of an OpenID Connect provider that verify them, and implements an external
// signer of ServiceAccount tokens.
package tokens
