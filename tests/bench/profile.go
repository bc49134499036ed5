package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"triune.dev/tests/bench/load"
)

// kinds are the kinds of profiles, with their names below /debug/pprof: CPU time,
// allocations, and contended locks.
var kinds = map[string]string{"cpu": "profile", "alloc": "allocs", "mutex": "mutex"}

// profile takes profiles of all processes while a load is on. The files are <dir>/<subject>/<workload>.<process>.<kind>.prof.
func profile(ctx context.Context, dir, subject, workload string, processes map[string]load.Target, length time.Duration, again func(context.Context) error) error {
	dir = filepath.Join(dir, subject)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var mu sync.Mutex
	var errs []error
	var taking sync.WaitGroup
	take := func(f func() error) {
		taking.Go(func() {
			if err := f(); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	take(func() error { return again(ctx) })
	for name, target := range processes {
		for kind, path := range kinds {
			take(func() error {
				conn := load.Dial(target)
				defer conn.Close()
				data, err := conn.Get(ctx, load.Request{Path: fmt.Sprintf("/debug/pprof/%s?seconds=%.0f", path, length.Seconds())})
				if err != nil {
					return err
				}
				return os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s.%s.%s.prof", workload, name, kind)), data, 0o644)
			})
		}
	}
	taking.Wait()
	return errors.Join(errs...)
}
