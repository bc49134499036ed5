// Package conformance holds our implementations of public protocols to the suites that
// others have written for them.
package conformance
