package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/kv"
)

// The messages of 410 Expired, as clients of kube-apiserver know them.
const (
	listExpired     = "The resourceVersion for the provided list is too old."
	continueExpired = "The provided continue parameter is too old to display a consistent list result. " +
		"You can start a new list without the continue parameter."
	continueInconsistently = "The provided continue parameter is too old to display a consistent list result. " +
		"You can start a new list without the continue parameter, or use the continue token in this response to " +
		"retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - " +
		"objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list."
)

// GetList implements storage.Interface. It reads large collections from etcd in bounded
// pages, all at the revision of the first one.
func (s *Store) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	prefix, err := s.keys.etcdKey(key, opts.Recursive)
	if err != nil {
		return err
	}
	ctx, end := traceList(ctx, key, &opts)
	defer end()
	out, err := newListItems(list)
	if err != nil {
		return err
	}
	plan, err := planList(prefix, s.versioner, opts, s.uncached)
	if err != nil {
		return err
	}
	l := &lister{store: s, key: key, prefix: prefix, opts: opts, plan: plan, out: out}
	if plan.limit > 0 && plan.exact == 0 && opts.Predicate.Continue == "" && !s.uncached {
		l.indexed = IndexOf(opts.Predicate)
	}
	defer func() { metrics.RecordStorageListMetrics(s.resource, l.fetched, l.examined, out.count) }()
	if err := l.run(ctx); err != nil {
		return err
	}
	out.finish()
	s.sizes.listed(l, opts.Recursive)

	token, remaining, err := storage.PrepareContinueToken(l.last, l.tokenPrefix(), l.revision, l.total, l.more, opts)
	if err != nil {
		return err
	}
	if err := s.versioner.UpdateList(list, uint64(l.revision), token, remaining); err != nil {
		return err
	}
	opts.Predicate.SetShardInfoOnList(list)
	return nil
}

// lister is the state of one LIST.
type lister struct {
	store  *Store
	key    string // of the collection or object, as the caller has it
	prefix string // the same in etcd
	opts   storage.ListOptions
	plan   listPlan
	out    *listItems

	// indexed is as from IndexOf; nil also where the index is not asked.
	indexed *fields.Requirement

	revision int64 // at which the list is true
	opened   bool  // the page under way is decrypted already
	// entries are those of the page under way where it is the cache's, whose items
	// have no values; nil elsewhere.
	entries []*bytecache.Entry
	total   int64  // keys from the start of the list on, at that revision
	last    string // last key examined
	more    bool   // there are keys after last

	fetched, examined int
	bytes             int64
	unreadable        unreadableList
}

func (l *lister) run(ctx context.Context) error {
	start := l.plan.start
	pages := newPager(l.plan.limit)
	for first := true; ; first = false {
		page, err := l.page(ctx, start, pages.size, first)
		if err != nil {
			return err
		}
		if first {
			l.revision, l.total = page.Revision, page.Count
			if l.plan.exact != 0 {
				l.revision = l.plan.exact
			}
		}
		l.fetched += len(page.KVs)
		l.more = page.More()
		if len(page.KVs) == 0 && l.more {
			return fmt.Errorf("etcd returned none of %d keys below %s", page.Count, l.prefix)
		}
		pages.after(page)
		full, err := l.take(ctx, page)
		if err != nil {
			return err
		}
		if full || !l.more {
			break
		}
		start = following([]byte(l.last))
	}
	if len(l.unreadable.errs) > 0 {
		return l.unreadable.status(l.store.resource)
	}
	return nil
}

// take decodes and selects the objects of a page. It returns true when the
// client's limit is reached.
func (l *lister) take(ctx context.Context, page kv.Page) (full bool, err error) {
	s, everything := l.store, l.opts.Predicate.Empty()
	if everything {
		l.out.grow(len(page.KVs))
	}
	var decoding time.Duration
	defer func() { request.TrackDecodeLatency(ctx, decoding) }()
	for i, item := range page.KVs {
		if l.full() && l.indexed == nil {
			l.more = true
			return true, nil
		}
		// Stop decoding when the request has ended.
		if ctx.Err() != nil {
			return false, storage.NewTimeoutError(string(item.Key), "request did not complete within requested timeout")
		}
		key := string(item.Key)
		start := time.Now()
		if l.entries != nil {
			item.Value = l.entries[i].Data()
		}
		l.bytes += int64(len(item.Value))
		obj, err := l.item(ctx, key, item, l.out.next())
		decoding += time.Since(start)
		if err != nil {
			l.last = key
			if l.unreadable.add(key, err) {
				continue
			}
			if len(l.unreadable.errs) > 0 {
				return false, l.unreadable.status(s.resource)
			}
			return false, err
		}
		if l.indexed != nil {
			if !l.inIndex(obj) {
				continue
			}
			if l.full() {
				l.more = true
				return true, nil
			}
		}
		l.last = key
		// An object without attributes matches no selector.
		if matches, err := l.opts.Predicate.Matches(obj); err == nil && matches {
			l.out.accept(obj)
		}
		l.examined++
		page.KVs[i] = nil
	}
	return l.full() && l.indexed == nil, nil
}

// IndexOf returns the requirement of a predicate on the first field that kube-apiserver's
// watch cache indexes for the resource, which is spec.nodeName for pods, or nil if there is
// none. A LIST of the newest state with a limit then only considers these objects when it
// reports whether there are more.
func IndexOf(p storage.SelectionPredicate) *fields.Requirement {
	for _, field := range p.IndexFields {
		if value, ok := p.Field.RequiresExactMatch(field); ok {
			return &fields.Requirement{Operator: selection.Equals, Field: field, Value: value}
		}
	}
	return nil
}

// inIndex reports whether the index has an object.
func (l *lister) inIndex(obj runtime.Object) bool {
	_, found, err := l.opts.Predicate.GetAttrs(obj)
	return err == nil && found.Get(l.indexed.Field) == l.indexed.Value
}

func (l *lister) full() bool {
	return l.plan.limit > 0 && int64(l.out.count) >= l.plan.limit
}

func (l *lister) item(ctx context.Context, key string, item *kv.KeyValue, into runtime.Object) (runtime.Object, error) {
	s := l.store
	if l.opened {
		return s.decode(key, item.Value, item.ModRevision, into)
	}
	data, _, err := s.decrypt(ctx, key, item.Value)
	if err != nil {
		return nil, storage.NewInternalError(fmt.Errorf("unable to transform key %q: %w", key, err))
	}
	return s.decode(key, data, item.ModRevision, into)
}

// page reads one page. The first one determines the revision of all pages, for which it
// waits if the plan requires that.
func (l *lister) page(ctx context.Context, start string, size int64, first bool) (kv.Page, error) {
	if !first {
		page, err := l.read(ctx, start, size, kv.ReadOptions{Revision: l.revision})
		return page, l.explain(err, start)
	}
	o := kv.ReadOptions{Revision: l.plan.exact, Serializable: l.plan.anyMember}
	page, err := l.read(ctx, start, size, o)
	if err == nil && o.Serializable && page.Revision < l.plan.atLeast {
		o.Serializable = false // that member is behind
		page, err = l.read(ctx, start, size, o)
	}
	var missing int64
	switch {
	case errors.Is(err, rpctypes.ErrFutureRev):
		missing = l.plan.exact
	case err != nil:
		return kv.Page{}, l.explain(err, start)
	case page.Revision < l.plan.atLeast:
		missing = l.plan.atLeast
	default:
		return page, nil
	}
	if !l.plan.wait {
		current := page.Revision
		if current == 0 {
			// The revision is only for the message; 0 means unknown.
			current, _ = l.store.currentRevision(ctx)
		}
		return kv.Page{}, tooLarge(missing, current)
	}
	if err := l.store.awaitRevision(ctx, missing); err != nil {
		return kv.Page{}, err
	}
	page, err = l.read(ctx, start, size, kv.ReadOptions{Revision: l.plan.exact})
	return page, l.explain(err, start)
}

// read reads a page of a collection from etcd, or the one object of a LIST by name.
func (l *lister) read(ctx context.Context, from string, size int64, o kv.ReadOptions) (kv.Page, error) {
	s, start := l.store, time.Now()
	l.opened, l.entries = false, nil
	if !l.opts.Recursive {
		cached, err := s.cachedGet(ctx, l.prefix, o)
		if err != nil {
			return kv.Page{}, err
		}
		if cached.known {
			page := kv.Page{Revision: cached.revision}
			if e := cached.entry; e != nil {
				page.KVs, page.Count = []*kv.KeyValue{{Key: []byte(e.Key), Value: e.Data(), ModRevision: e.Revision}}, 1
			}
			l.opened = true
			return page, nil
		}
		item, err := s.get(ctx, l.prefix, o)
		page := kv.Page{Revision: item.Revision}
		if item.KV != nil {
			page.KVs, page.Count = []*kv.KeyValue{item.KV}, 1
		}
		return page, err
	}
	page, known, err := l.cachedPage(ctx, from, o)
	if known || err != nil {
		l.opened = known
		return page, err
	}
	r := kv.PrefixRange(l.prefix, from)
	r.Limit, r.ReadOptions = size, o
	page, err = s.reader.List(ctx, r)
	metrics.RecordEtcdRequest("list", s.resource, err, start)
	return page, err
}

// explain converts etcd's "compacted" error to 410 Expired. For a continue token, the error
// has a token to continue at the newest revision.
func (l *lister) explain(err error, from string) error {
	if err == nil || !errors.Is(err, rpctypes.ErrCompacted) {
		return err
	}
	if l.opts.Predicate.Continue == "" {
		return apierrors.NewResourceExpired(listExpired)
	}
	// The revision -1 of a token means "the newest"; 0 would be a broken token.
	// That is the answer of kube-apiserver's bare storage, whatever is cached.
	token, err := storage.EncodeContinue(from, l.prefix, -1)
	if err != nil {
		return apierrors.NewResourceExpired(continueExpired)
	}
	expired := apierrors.NewResourceExpired(continueInconsistently)
	expired.ErrStatus.ListMeta.Continue = token
	return expired
}

// tokenPrefix returns the prefix that keys in continue tokens omit. Where the collection
// was asked for without a slash at the end, kube-apiserver's watch cache leaves the slash
// to the keys, and its bare storage does not; either server reads both.
func (l *lister) tokenPrefix() string {
	if l.store.uncached || strings.HasSuffix(l.key, "/") {
		return l.prefix
	}
	return strings.TrimSuffix(l.prefix, "/")
}
