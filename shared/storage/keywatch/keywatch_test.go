package keywatch

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"triune.dev/shared/storage/kv"
)

func TestClassify(t *testing.T) {
	for _, tc := range []struct {
		name        string
		kind        kv.Kind
		now, before bool
		want        Outcome
	}{
		{"created inside", kv.Created, true, false, Outcome{Event: watch.Added}},
		{"created inside, with no selector to judge the past", kv.Created, true, true, Outcome{Event: watch.Added}},
		{"created outside", kv.Created, false, false, Outcome{}},
		{"modified inside", kv.Modified, true, true, Outcome{Event: watch.Modified}},
		{"modified outside", kv.Modified, false, false, Outcome{}},
		{"enters", kv.Modified, true, false, Outcome{Event: watch.Added}},
		{"leaves", kv.Modified, false, true, Outcome{Event: watch.Deleted, Previous: true}},
		{"deleted inside", kv.Deleted, false, true, Outcome{Event: watch.Deleted, Previous: true}},
		{"deleted outside", kv.Deleted, false, false, Outcome{}},
	} {
		if got := Classify(tc.kind, tc.now, tc.before); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

func TestPlanWatch(t *testing.T) {
	yes, no := true, false
	bookmarks := storage.SelectionPredicate{AllowWatchBookmarks: true}
	for _, tc := range []struct {
		name     string
		version  int64
		opts     storage.ListOptions
		off      bool // WatchList feature
		uncached bool
		want     plan
	}{
		{name: "unset: state, then events", want: plan{list: true}},
		{name: "0: any state, then events", opts: storage.ListOptions{ResourceVersion: "0"}, want: plan{list: true, anyMember: true}},
		{name: "N: events after it", version: 7, opts: storage.ListOptions{ResourceVersion: "7"}, want: plan{after: 7}},
		{name: "N with bookmarks", version: 7, opts: storage.ListOptions{ResourceVersion: "7", Predicate: bookmarks}, want: plan{after: 7, bookmarks: true}},
		{name: "N with bookmarks, uncached", version: 7, opts: storage.ListOptions{ResourceVersion: "7", Predicate: bookmarks}, uncached: true, want: plan{after: 7}},
		{name: "initial events", opts: storage.ListOptions{SendInitialEvents: &yes, Predicate: bookmarks}, want: plan{list: true, endBookmark: true, bookmarks: true}},
		{name: "initial events, uncached", opts: storage.ListOptions{SendInitialEvents: &yes, Predicate: bookmarks}, uncached: true, want: plan{list: true, endBookmark: true}},
		{name: "initial events not older than N", version: 7, opts: storage.ListOptions{ResourceVersion: "7", SendInitialEvents: &yes, Predicate: bookmarks}, want: plan{list: true, anyMember: true, atLeast: 7, endBookmark: true, bookmarks: true}},
		{name: "initial events of any state", opts: storage.ListOptions{ResourceVersion: "0", SendInitialEvents: &yes, Predicate: bookmarks}, want: plan{list: true, anyMember: true, endBookmark: true, bookmarks: true}},
		{name: "initial events without bookmarks", opts: storage.ListOptions{SendInitialEvents: &yes}, want: plan{list: true}},
		{name: "no initial events: from now", opts: storage.ListOptions{SendInitialEvents: &no}, want: plan{}},
		{name: "no initial events, N", version: 7, opts: storage.ListOptions{ResourceVersion: "7", SendInitialEvents: &no}, want: plan{after: 7}},
		{name: "initial events, feature off", opts: storage.ListOptions{SendInitialEvents: &yes, Predicate: bookmarks}, off: true, want: plan{list: true, bookmarks: true}},
		{name: "no initial events, feature off", opts: storage.ListOptions{SendInitialEvents: &no}, off: true, want: plan{list: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := planWatch(tc.version, tc.opts, !tc.off, tc.uncached)
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(plan{})); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNextBookmark(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name     string
		deadline time.Duration // 0: none
		want     time.Duration // 0: no more
	}{
		{"no deadline", 0, time.Minute},
		{"far deadline", time.Hour, time.Minute},
		{"near deadline", 30 * time.Second, 28 * time.Second},
		{"just after the minute", 61 * time.Second, 59 * time.Second},
		{"too near", 2 * time.Second, 0},
		{"passed", -time.Second, 0},
	} {
		deadline := time.Time{}
		if tc.deadline != 0 {
			deadline = now.Add(tc.deadline)
		}
		next, ok := nextBookmark(now, time.Minute, deadline)
		if ok != (tc.want != 0) || ok && next.Sub(now) != tc.want {
			t.Errorf("%s: in %s, %t, want in %s", tc.name, next.Sub(now), ok, tc.want)
		}
	}
}
