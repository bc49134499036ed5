package nexttier

import (
	"hash/maphash"
	"maps"
	"strings"
	"sync"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"triune.dev/shared/transport/tierclient"
)

// limits keep any one client from filling the hop. Which request is served first is decided
// by the priority and fairness of the tier that serves a request; it would not get to see one
// whose place here is taken.
//
// Clients are of four sorts, none of which can take from another: strangers, whom nobody
// has authenticated; the tiers themselves; the rest of the cluster's machinery; and everyone
// else. Members of system:masters are not limited, as in kube-apiserver.
type limits struct{ unauthenticated, tiers, system, users shares }

// newLimits returns limits by which one user may have as many requests as alone while nobody
// else has any.
func newLimits(alone int) *limits {
	l := &limits{}
	l.unauthenticated.init(max(1, alone/10))
	l.tiers.init(max(1, alone/4))
	l.system.init(alone)
	l.users.init(alone)
	return l
}

// take returns a share for one more request of u, which must be given back, or false if u
// has as many as it may have.
func (l *limits) acquire(u user.Info, info *apirequest.RequestInfo) (share, bool) {
	if l == nil {
		return share{}, true
	}
	name := u.GetName()
	if strings.HasPrefix(name, tierclient.UserPrefix) {
		// Strangers can have tokens reviewed. That must not keep informers waiting.
		if info != nil {
			name = info.Resource
		}
		return l.tiers.acquire(name, name)
	}
	sort, group := &l.users, user.AllAuthenticated
	if strings.HasPrefix(name, "system:") && !strings.HasPrefix(name, serviceaccount.ServiceAccountUsernamePrefix) {
		sort = &l.system
	}
	for _, g := range u.GetGroups() {
		switch {
		case g == user.SystemPrivilegedGroup:
			return share{}, true
		case g == user.AllUnauthenticated:
			return l.unauthenticated.acquire(name, name)
		case g == systemServiceAccounts:
			sort, group = &l.system, g
		case g == user.NodesGroup, strings.HasPrefix(g, serviceaccount.ServiceAccountGroupPrefix):
			group = g
		}
	}
	return sort.acquire(name, group)
}

// systemServiceAccounts is the group of those in the namespace kube-system.
const systemServiceAccounts = serviceaccount.ServiceAccountGroupPrefix + "kube-system"

// shares divide a capacity among users, and among groups of users. Nobody has a fixed part:
// a user may take one more while it has less than half of what is free, a group while it has
// less than what is free. So a user alone gets a third of all, n users who come and go get
// one of n+2 parts each, and two parts are left for whoever comes next. Many users who stay
// could take it all, so a user that has none gets one even beyond the capacity.
type shares struct {
	soloLimit int

	mu    sync.Mutex
	inUse int // guarded by mu
	// users and groups count what each has; guarded by mu.
	users, groups counts
}

func (s *shares) init(alone int) { s.soloLimit, s.users, s.groups = alone, counts{}, counts{} }

// share is a part of shares. The zero one is a part of nothing.
type share struct {
	pool          *shares
	user, group *int // guarded by of.mu
}

// take takes a share.
func (s *shares) acquire(user, group string) (share, bool) {
	u, g := maphash.String(hashSeed, user), maphash.String(hashSeed, group)
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := share{s, s.users.counter(u), s.groups.counter(g)}
	capacity := 3 * s.soloLimit
	free := capacity - s.inUse
	first := *taken.user == 0 && *taken.group < s.soloLimit && s.inUse < 2*capacity
	if !first && (2**taken.user >= free || *taken.group >= free) {
		return share{}, false
	}
	taken.addLocked(1)
	return taken, true
}

func (s share) release() {
	if s.pool != nil {
		s.pool.mu.Lock()
		s.addLocked(-1)
		s.pool.mu.Unlock()
	}
}

func (s share) addLocked(n int) {
	s.pool.inUse += n
	*s.user += n
	*s.group += n
}

// counts are numbers by the hash of a name, which can be long.
type counts map[uint64]*int

var hashSeed = maphash.MakeSeed()

// mostCounts is how many numbers are kept, most of which are 0.
const maxCounters = 4096

func (c counts) counter(key uint64) *int {
	n, ok := c[key]
	if !ok {
		if len(c) >= maxCounters {
			maps.DeleteFunc(c, func(_ uint64, n *int) bool { return *n == 0 })
		}
		n = new(int)
		c[key] = n
	}
	return n
}

// slot is the share that a request holds at the moment. Its methods may be called
// concurrently.
type slot struct {
	mu   sync.Mutex
	current share // guarded by mu
}

// free gives back what is held, if it has not been.
func (s *slot) release() { s.replace(share{}) }

// exchange gives back what is held and holds other instead; if nothing was held, it gives
// other back.
func (s *slot) replace(other share) {
	s.mu.Lock()
	held := s.current
	if held.pool != nil {
		s.current, other = other, held
	}
	s.mu.Unlock()
	other.release()
}
