// Package polltest waits in tests for what happens in the background: [Until] polls a
// condition.
package polltest

import (
	"testing"
	"time"
)

// interval is short, because most conditions hold after milliseconds.
const interval = 5 * time.Millisecond

// Until waits until ok returns true. If it does not within limit, the test fails, with what it
// has waited for. Call it from the goroutine of the test.
func Until(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(interval) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}
