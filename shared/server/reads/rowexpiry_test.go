package reads

import (
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
)

// TestNextAgeChange checks that the output of HumanDuration, for the time since or until a
// timestamp, stays the same until nextAgeChange.
func TestNextAgeChange(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	now := time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)
	for range 20000 {
		age := time.Duration(random.Int64N(int64(time.Second) << random.IntN(30)))
		if random.IntN(4) == 0 {
			age = age.Truncate(time.Second)
		}
		if random.IntN(3) == 0 {
			age = -age
		}
		timestamp := now.Add(-age)
		next := nextAgeChange(timestamp, now)
		if next.Before(now) {
			t.Fatalf("age %v: the next change is %v ago", age, now.Sub(next))
		}
		span := int64(next.Sub(now))
		if span == 0 {
			continue // changes at once
		}
		for _, later := range []time.Duration{1, time.Duration(random.Int64N(span)), time.Duration(span - 1)} {
			if int64(later) >= span {
				continue
			}
			at := now.Add(later)
			if was, is := duration.HumanDuration(now.Sub(timestamp)), duration.HumanDuration(at.Sub(timestamp)); was != is {
				t.Fatalf("age %v: %s became %s after %v, want no change for %v", age, was, is, later, time.Duration(span))
			}
			if was, is := duration.HumanDuration(timestamp.Sub(now)), duration.HumanDuration(timestamp.Sub(at)); was != is {
				t.Fatalf("%v to come: %s became %s after %v, want no change for %v", -age, was, is, later, time.Duration(span))
			}
		}
	}
}

// TestUnchangedUntil checks that every timestamp in an object counts.
func TestUnchangedUntil(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	old := metav1.NewTime(now.Add(-100*24*time.Hour + time.Hour))
	young := metav1.NewTime(now.Add(-30 * time.Minute).Add(-10 * time.Second))
	custom := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"seen": []any{map[string]any{"at": young.Format(time.RFC3339)}}}}}
	custom.SetCreationTimestamp(old)
	for name, tc := range map[string]struct {
		obj  runtime.Object
		want time.Duration
	}{
		"none":          {&corev1.Pod{}, 24 * time.Hour},
		"created":       {&corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: old}}, time.Hour},
		"a pointer":     {&corev1.Pod{Status: corev1.PodStatus{StartTime: &young}}, 50 * time.Second},
		"in a list":     {&corev1.Pod{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Time: &young}}}}, 50 * time.Second},
		"microseconds":  {&corev1.Event{EventTime: metav1.NewMicroTime(now.Add(-1500 * time.Millisecond))}, 500 * time.Millisecond},
		"unstructured":  {custom, 50 * time.Second},
		"in the future": {&corev1.Pod{Status: corev1.PodStatus{StartTime: &metav1.Time{Time: now.Add(1500 * time.Millisecond)}}}, 500 * time.Millisecond},
	} {
		if got := unchangedUntil(tc.obj, now).Sub(now); got != tc.want {
			t.Errorf("%s: unchanged for %v, want %v", name, got, tc.want)
		}
	}
}

// TestRowsExpireWithAges checks that an expired row is not sent, and that unused rows are
// evicted.
func TestRowsExpireWithAges(t *testing.T) {
	var rows rowCache
	now := time.Now()
	key := rowKey{style: tableStyle{noHeaders: true}}
	rows.put(key, []byte("row"), 0, now.Add(time.Second))
	if rows.get(key, now) == nil || rows.get(key, now.Add(time.Second)) != nil {
		t.Error("a row is not cached until it changes")
	}
	large := make([]byte, maxRowBytes)
	for i := range 3 {
		rows.put(rowKey{style: tableStyle{includeObject: metav1.IncludeObjectPolicy(rune('a' + i))}}, large, 0, now.Add(time.Second))
	}
	if rows.get(key, now) != nil {
		t.Error("a row that was not used is still there")
	}
}
