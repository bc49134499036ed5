package witness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"triune.dev/tests/faults/wire"
)

// Watcher watches one view from a revision on and records the events. It resumes from its
// last resourceVersion, at the next server, whenever its connection ends. Run is called
// once; the other methods may be called concurrently.
type Watcher struct {
	HTTP *http.Client
	URLs []string
	View View
	// Since is the revision after which it starts.
	Since int64
	// Prefix is the prefix of the relevant namespaces, in a view of all.
	Prefix string
	Random *rand.Rand

	mu     sync.Mutex
	events []Event
	at     int64 // the resourceVersion to resume from
	counts Counts
}

// Counts counts incidents of a watcher.
type Counts struct {
	Connections, Bookmarks int
	// Refusals counts attempts that were not answered with a watch.
	Refusals int
	// Expired counts 410s, after which a client would have to list.
	Expired int
}

// Counts returns the current counts.
func (w *Watcher) Counts() Counts {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts
}

// last returns the revision of the last event.
func (w *Watcher) last() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events) == 0 {
		return 0
	}
	return w.events[len(w.events)-1].Revision
}

// told returns the events so far. They are not modified afterwards.
func (w *Watcher) told() []Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.events[:len(w.events):len(w.events)]
}

// errExpired ends a watch that needs a new LIST.
var errExpired = errors.New("410")

// Run watches until ctx is done, which is not an error. An error is an event that no server
// may send.
func (w *Watcher) Run(ctx context.Context) error {
	w.mu.Lock()
	w.at = w.Since
	w.mu.Unlock()
	for next := w.Random.IntN(len(w.URLs)); ctx.Err() == nil; next++ {
		err := w.once(ctx, w.URLs[next%len(w.URLs)])
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errExpired) {
			w.mu.Lock()
			w.counts.Expired++
			w.mu.Unlock()
		}
		if err != nil {
			return fmt.Errorf("watch %v: %w", w.View, err)
		}
		select { // spread the starts
		case <-time.After(time.Duration(50+w.Random.IntN(200)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return nil
}

// frame is a line of a watch.
type frame struct {
	Type   string      `json:"type"`
	Object wire.Object `json:"object"`
}

// once watches over one connection. Its end is not an error.
func (w *Watcher) once(ctx context.Context, server string) error {
	w.mu.Lock()
	at := w.at
	w.mu.Unlock()
	query := url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {strconv.FormatInt(at, 10)},
		// Some watches end by themselves, at any time.
		"timeoutSeconds": {strconv.Itoa(5 + w.Random.IntN(120))},
	}
	req, err := wire.NewRequest(ctx, http.MethodGet, server+w.View.path(query), "", nil)
	if err != nil {
		return err
	}
	resp, err := w.HTTP.Do(req)
	if err != nil {
		w.refused()
		return nil
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusGone:
		return fmt.Errorf("from %d at %s: %w", at, server, errExpired)
	case resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusTooManyRequests:
		w.refused()
		return nil
	case resp.StatusCode != http.StatusOK:
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("from %d at %s: %s: %s", at, server, resp.Status, body)
	}
	w.mu.Lock()
	w.counts.Connections++
	w.mu.Unlock()
	frames := json.NewDecoder(resp.Body)
	for {
		var f frame
		if err := frames.Decode(&f); err != nil {
			if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
				return fmt.Errorf("from %d at %s: %w", at, server, err)
			}
			return nil
		}
		if err := w.take(f); err != nil {
			return fmt.Errorf("from %d at %s: %w", at, server, err)
		}
	}
}

func (w *Watcher) refused() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts.Refusals++
}

// take records one frame.
func (w *Watcher) take(f frame) error {
	if f.Type == "ERROR" {
		if f.Object.Code == http.StatusGone {
			return fmt.Errorf("%w: %s", errExpired, f.Object.Message)
		}
		if f.Object.Code >= http.StatusInternalServerError {
			return nil // the connection ends, and the client resumes
		}
		return fmt.Errorf("event ERROR: %d %s: %s", f.Object.Code, f.Object.Reason, f.Object.Message)
	}
	revision, err := f.Object.Metadata.Revision()
	if err != nil {
		return fmt.Errorf("%s: %w", f.Type, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.Type == "BOOKMARK" {
		w.counts.Bookmarks++
		if revision < w.at {
			return fmt.Errorf("a bookmark of %d after %d", revision, w.at)
		}
		w.at = revision
		return nil
	}
	if revision <= w.at {
		return fmt.Errorf("%s of %s at %d after %d", f.Type, f.Object.Metadata.Name, revision, w.at)
	}
	w.at = revision
	if !strings.HasPrefix(f.Object.Metadata.Namespace, w.Prefix) {
		return nil
	}
	serial, err := strconv.Atoi(f.Object.Data[Serial])
	if err != nil {
		if f.Object.Data[Serial] == "" {
			return nil // written by a controller
		}
		return fmt.Errorf("%s of %s: serial: %w", f.Type, f.Object.Metadata.Name, err)
	}
	w.events = append(w.events, Event{
		Key:  Key{f.Object.Metadata.Namespace, f.Object.Metadata.Name},
		Type: f.Type, Revision: revision, Serial: serial,
	})
	return nil
}

// Told returns the number of events so far.
func (w *Watcher) Told() int { return len(w.told()) }
