// Package conformance tests our implementations of public protocols with their public test
// suites.
package conformance
