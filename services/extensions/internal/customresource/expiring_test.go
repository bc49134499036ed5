package customresource

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestExpiring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		var fail error
		e := newExpiring(func() (*int, error) {
			made++
			return &made, fail
		})
		defer e.stop()
		want := func(step string, n int) {
			t.Helper()
			if _, err := e.get(); err != nil || made != n {
				t.Errorf("%s: made %d times, want %d; %v", step, made, n, err)
			}
		}
		fail = errors.New("not now")
		if _, err := e.get(); !errors.Is(err, fail) {
			t.Errorf("error %v, want %v", err, fail)
		}
		fail = nil
		want("after an error", 2)
		for range 10 {
			time.Sleep(idleTimeout / 2)
			want("in use", 2)
		}
		time.Sleep(2*idleTimeout + time.Second)
		if e.value.Load() != nil {
			t.Error("an unused value was not dropped")
		}
		want("used again", 3)
		e.stop()
		time.Sleep(3 * idleTimeout)
		want("stopped", 3)
	})
}
