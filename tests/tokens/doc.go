// Package tokens makes bearer tokens for tests: it signs JSON Web Tokens, serves the
// documents of an OpenID Connect provider by which they are verified, and is the signer of
// API servers that have no key for tokens of ServiceAccounts.
package tokens
