package witness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"triune.dev/tests/faults/wire"
)

// Writer creates, updates and deletes config maps of a namespace that has no other writers,
// and records the changes in the ledger. Run is called once.
type Writer struct {
	HTTP   *http.Client
	URLs   []string
	Ledger *Ledger
	// Namespace must exist; Prefix is the prefix of all names.
	Namespace, Prefix string
	// Every is the interval between two changes.
	Every  time.Duration
	Random *rand.Rand

	next    int
	created int
	live    []*written
	// Troubles counts requests with an unknown outcome, and Longest is the duration of the
	// slowest change.
	Troubles int
	Longest  time.Duration
}

// written is a config map as the writer left it.
type written struct {
	key      Key
	revision int64
	serial   int
}

// patience bounds one request of a writer.
const patience = 2 * time.Second

// maxLive bounds the config maps of a writer.
const maxLive = 6

// Run writes until done is closed, and returns when the outcome of the last change is
// known. An error is an answer that no server may give, or that of ctx.
func (w *Writer) Run(ctx context.Context, done <-chan struct{}) error {
	select { // spread the starts
	case <-done:
		return nil
	case <-time.After(time.Duration(w.Random.Int64N(int64(w.Every)))):
	}
	tick := time.NewTicker(w.Every)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return nil
		case <-tick.C:
			begin := time.Now()
			if err := w.change(ctx); err != nil {
				return fmt.Errorf("write in %s: %w", w.Namespace, err)
			}
			w.Longest = max(w.Longest, time.Since(begin))
		}
	}
}

// Mark creates one config map for each value of the label, so that every watcher of the
// namespace has a last event to wait for.
func (w *Writer) Mark(ctx context.Context) error {
	for shard := range Shards {
		if err := w.create(ctx, shard); err != nil {
			return fmt.Errorf("mark the end of %s: %w", w.Namespace, err)
		}
	}
	return nil
}

func (w *Writer) change(ctx context.Context) error {
	dice := w.Random.IntN(10)
	switch {
	case len(w.live) == 0 || dice < 2 && len(w.live) < maxLive:
		return w.create(ctx, w.Random.IntN(Shards))
	case dice == 9:
		return w.remove(ctx)
	}
	return w.update(ctx)
}

func (w *Writer) object(o *written, serial, shard int) wire.Object {
	body := wire.Object{APIVersion: "v1", Kind: "ConfigMap", Data: map[string]string{Serial: strconv.Itoa(serial)}}
	body.Metadata.Name = o.key.Name
	body.Metadata.Labels = map[string]string{Label: value(shard)}
	if o.revision != 0 {
		body.Metadata.ResourceVersion = strconv.FormatInt(o.revision, 10)
	}
	return body
}

// create uses a new name, so a late create of an earlier attempt conflicts.
func (w *Writer) create(ctx context.Context, shard int) error {
	w.created++
	o := &written{key: Key{w.Namespace, fmt.Sprintf("%s-%d", w.Prefix, w.created)}, serial: 1}
	body := w.object(o, 1, shard)
	for {
		answer, code, err := w.send(ctx, http.MethodPost, "", body)
		if err != nil {
			return err
		}
		if code == http.StatusConflict && answer.Reason == "AlreadyExists" {
			// An earlier attempt was executed.
			if answer, code, err = w.send(ctx, http.MethodGet, o.key.Name, nil); err != nil {
				return err
			}
		}
		if code == http.StatusCreated || code == http.StatusOK {
			if err := w.accept(o, answer, 1, shard); err != nil {
				return err
			}
			w.live = append(w.live, o)
			return nil
		}
		if code != 0 {
			return fmt.Errorf("create %s: %d %s", o.key.Name, code, answer.Message)
		}
	}
}

// update retries until the object is as intended: all attempts have the same precondition,
// so at most one is executed.
func (w *Writer) update(ctx context.Context) error {
	o := w.live[w.Random.IntN(len(w.live))]
	serial, shard := o.serial+1, w.Random.IntN(Shards)
	if w.Random.IntN(3) > 0 { // usually keep the label
		changes := w.Ledger.of(o.key)
		shard = changes[len(changes)-1].Shard
	}
	body := w.object(o, serial, shard)
	for {
		answer, code, err := w.send(ctx, http.MethodPut, o.key.Name, body)
		if err != nil {
			return err
		}
		if code == http.StatusConflict && answer.Reason == "Conflict" {
			if answer, code, err = w.send(ctx, http.MethodGet, o.key.Name, nil); err != nil {
				return err
			}
		}
		if code == http.StatusOK {
			return w.accept(o, answer, serial, shard)
		}
		if code != 0 {
			return fmt.Errorf("update %s: %d %s", o.key.Name, code, answer.Message)
		}
	}
}

func (w *Writer) remove(ctx context.Context) error {
	i := w.Random.IntN(len(w.live))
	o := w.live[i]
	body := map[string]any{"apiVersion": "v1", "kind": "DeleteOptions",
		"preconditions": map[string]any{"resourceVersion": strconv.FormatInt(o.revision, 10)}}
	for tried := 0; ; tried++ {
		answer, code, err := w.send(ctx, http.MethodDelete, o.key.Name, body)
		if err != nil {
			return err
		}
		if code == http.StatusOK || code == http.StatusNotFound && tried > 0 {
			w.live = append(w.live[:i], w.live[i+1:]...)
			w.Ledger.add(o.key, Change{Serial: o.serial, Shard: -1})
			return nil
		}
		if code != 0 {
			return fmt.Errorf("delete %s: %d %s", o.key.Name, code, answer.Message)
		}
	}
}

// accept records a change if the answer shows it.
func (w *Writer) accept(o *written, answer wire.Object, serial, shard int) error {
	revision, err := answer.Metadata.Revision()
	if err != nil {
		return err
	}
	if got := answer.Data[Serial]; got != strconv.Itoa(serial) {
		return fmt.Errorf("%s has serial %s after change %d", o.key.Name, got, serial)
	}
	if revision <= o.revision {
		return fmt.Errorf("%s is at revision %d after %d", o.key.Name, revision, o.revision)
	}
	o.revision, o.serial = revision, serial
	w.Ledger.add(o.key, Change{Revision: revision, Serial: serial, Shard: shard})
	return nil
}

func (l *Ledger) of(key Key) []Change {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changes[key]
}

// send sends a request to the next server. Code 0 means that the outcome is unknown; then
// it has paused.
func (w *Writer) send(ctx context.Context, method, name string, body any) (wire.Object, int, error) {
	server := w.URLs[w.next%len(w.URLs)]
	w.next++
	target := server + "/api/v1/namespaces/" + w.Namespace + "/configmaps"
	if name != "" {
		target += "/" + name
	}
	contentType := "application/json"
	if body == nil {
		contentType = ""
	}
	attempt, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := wire.NewRequest(attempt, method, target, contentType, body)
	if err != nil {
		return wire.Object{}, 0, err
	}
	code, o, err := wire.Do(w.HTTP, req)
	if err == nil && code < http.StatusInternalServerError && code != http.StatusTooManyRequests {
		return o, code, nil
	}
	w.Troubles++
	select {
	case <-time.After(50 * time.Millisecond):
		return wire.Object{}, 0, nil
	case <-ctx.Done():
		return wire.Object{}, 0, fmt.Errorf("%s %s: %d %w: %w", method, target, code, err, context.Cause(ctx))
	}
}
