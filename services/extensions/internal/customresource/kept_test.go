package customresource

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		var fail error
		k := newKept(func() (*int, error) {
			made++
			return &made, fail
		})
		defer k.stop()
		want := func(step string, n int) {
			t.Helper()
			if _, err := k.get(); err != nil || made != n {
				t.Errorf("%s: made %d times, want %d; %v", step, made, n, err)
			}
		}
		fail = errors.New("not now")
		if _, err := k.get(); !errors.Is(err, fail) {
			t.Errorf("error %v, want %v", err, fail)
		}
		fail = nil
		want("after an error", 2)
		for range 10 {
			time.Sleep(keptFor / 2)
			want("while it is asked for", 2)
		}
		time.Sleep(2*keptFor + time.Second)
		if k.value.Load() != nil {
			t.Error("it is kept though nobody has asked for it")
		}
		want("asked for again", 3)
		k.stop()
		time.Sleep(3 * keptFor)
		want("stopped", 3)
	})
}
