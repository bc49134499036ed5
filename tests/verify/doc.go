// Package verify holds the rules of this repository that the compiler does not check: which
// imports are allowed and why, what every package and program must have, and that
// documents, generated files and module versions agree with the code.
//
// Each rule is a test named after it, and each ban states its reason. The rules
// on imports are in imports.go. The package has no API; `make verify-house` runs
// it, and `make verify` with it.
package verify
