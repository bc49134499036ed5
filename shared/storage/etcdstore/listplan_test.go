package etcdstore

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"
)

// TestPlanList follows the table of API concepts, "Resource versions": semantics for get
// and list.
func TestPlanList(t *testing.T) {
	const prefix = "/registry/pods/"
	token := func(rv int64) string {
		s, err := storage.EncodeContinue(prefix+"ns/b\x00", prefix, rv)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	everything := func(limit int64, token string) storage.SelectionPredicate {
		p := storage.Everything
		p.Limit, p.Continue = limit, token
		return p
	}
	exact, notOlder := metav1.ResourceVersionMatchExact, metav1.ResourceVersionMatchNotOlderThan
	for _, tc := range []struct {
		name     string
		opts     storage.ListOptions
		uncached bool
		want     listPlan
		bad      bool
	}{
		{name: "unset: the newest", opts: storage.ListOptions{Recursive: true, Predicate: everything(0, "")},
			want: listPlan{wait: true}},
		{name: "unset, limit", opts: storage.ListOptions{Recursive: true, Predicate: everything(5, "")},
			want: listPlan{limit: 5, wait: true}},
		{name: "0: any", opts: storage.ListOptions{Recursive: true, ResourceVersion: "0", Predicate: everything(0, "")},
			want: listPlan{anyMember: true, wait: true}},
		{name: "0, limit: ignored by a watch cache", opts: storage.ListOptions{Recursive: true, ResourceVersion: "0", Predicate: everything(5, "")},
			want: listPlan{anyMember: true, wait: true}},
		{name: "0, limit, uncached: honoured", opts: storage.ListOptions{Recursive: true, ResourceVersion: "0", Predicate: everything(5, "")}, uncached: true,
			want: listPlan{limit: 5, anyMember: true}},
		{name: "N: not older than", opts: storage.ListOptions{Recursive: true, ResourceVersion: "7", Predicate: everything(0, "")},
			want: listPlan{anyMember: true, atLeast: 7, wait: true}},
		{name: "N, limit: exact, for historical reasons", opts: storage.ListOptions{Recursive: true, ResourceVersion: "7", Predicate: everything(5, "")},
			want: listPlan{exact: 7, limit: 5, wait: true}},
		{name: "N, exact", opts: storage.ListOptions{Recursive: true, ResourceVersion: "7", ResourceVersionMatch: exact, Predicate: everything(0, "")},
			want: listPlan{exact: 7, wait: true}},
		{name: "N, not older than, limit", opts: storage.ListOptions{Recursive: true, ResourceVersion: "7", ResourceVersionMatch: notOlder, Predicate: everything(5, "")},
			want: listPlan{anyMember: true, atLeast: 7, limit: 5, wait: true}},
		{name: "0, not older than, limit", opts: storage.ListOptions{Recursive: true, ResourceVersion: "0", ResourceVersionMatch: notOlder, Predicate: everything(5, "")},
			want: listPlan{anyMember: true, wait: true}},
		{name: "continue", opts: storage.ListOptions{Recursive: true, Predicate: everything(5, token(7))},
			want: listPlan{exact: 7, start: prefix + "ns/b\x00", limit: 5, wait: true}},
		{name: "continue inconsistently", opts: storage.ListOptions{Recursive: true, Predicate: everything(5, token(-1))},
			want: listPlan{start: prefix + "ns/b\x00", limit: 5, wait: true}},
		{name: "continue with a version", opts: storage.ListOptions{Recursive: true, ResourceVersion: "7", Predicate: everything(5, token(7))}, bad: true},
		{name: "continue with rubbish", opts: storage.ListOptions{Recursive: true, Predicate: everything(5, "rubbish!")}, bad: true},
		{name: "rubbish", opts: storage.ListOptions{Recursive: true, ResourceVersion: "x", Predicate: everything(0, "")}, bad: true},
		{name: "negative", opts: storage.ListOptions{Recursive: true, ResourceVersion: "-1", Predicate: everything(0, "")}, bad: true},
		{name: "by name, exact: bypasses a watch cache", opts: storage.ListOptions{ResourceVersion: "7", ResourceVersionMatch: exact, Predicate: everything(0, "")},
			want: listPlan{exact: 7}},
		{name: "by name, N and limit: bypasses it, and is not exact", opts: storage.ListOptions{ResourceVersion: "7", Predicate: everything(5, "")},
			want: listPlan{anyMember: true, atLeast: 7, limit: 5}},
		{name: "by name, N", opts: storage.ListOptions{ResourceVersion: "7", Predicate: everything(0, "")},
			want: listPlan{anyMember: true, atLeast: 7, wait: true}},
		{name: "uncached, N: does not wait", opts: storage.ListOptions{Recursive: true, ResourceVersion: "7", Predicate: everything(0, "")}, uncached: true,
			want: listPlan{anyMember: true, atLeast: 7}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := planList(prefix, storage.APIObjectVersioner{}, tc.opts, tc.uncached)
			if tc.bad {
				if !apierrors.IsBadRequest(err) {
					t.Fatalf("error %v, want 400", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(listPlan{})); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}
