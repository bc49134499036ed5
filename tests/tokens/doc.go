// Package tokens makes bearer tokens for tests: it signs JSON Web Tokens, and serves the
// documents of an OpenID Connect provider by which they are verified.
package tokens
