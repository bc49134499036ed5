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

// limits keep one client from occupying the whole hop. The priority and fairness of the serving
// tier decides the order of requests, but it does not see requests that do not get through.
//
// Four classes of clients have separate limits: unauthenticated clients, the tiers themselves,
// system components, and all other users. Members of system:masters are not limited, as in
// kube-apiserver.
type limits struct{ unauthenticated, tiers, system, users shares }

// newLimits returns limits that allow soloLimit requests to a user while there are no others.
func newLimits(alone int) *limits {
	l := &limits{}
	l.unauthenticated.init(max(1, alone/10))
	l.tiers.init(max(1, alone/4))
	l.system.init(alone)
	l.users.init(alone)
	return l
}

// acquire returns a share for a request of u, which the caller must release. It returns false if
// u has no share left.
func (l *limits) acquire(u user.Info, info *apirequest.RequestInfo) (share, bool) {
	if l == nil {
		return share{}, true
	}
	name := u.GetName()
	if strings.HasPrefix(name, tierclient.UserPrefix) {
		// Unauthenticated clients cause token reviews, which must not delay informers.
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

// systemServiceAccounts is the group of the ServiceAccounts in kube-system.
const systemServiceAccounts = serviceaccount.ServiceAccountGroupPrefix + "kube-system"

// shares divides a capacity among users and groups of users. There are no fixed parts: a user may
// acquire another share while it has less than half of the free capacity, and a group while it
// has less than the free capacity. A single user therefore gets a third of the total, each of n
// busy users one of n+2 parts, and two parts remain for newcomers. Many users together could
// occupy everything, so a user without a share gets one even beyond the capacity.
type shares struct {
	soloLimit int

	mu    sync.Mutex
	inUse int // guarded by mu
	// users and groups count the shares of each; guarded by mu.
	users, groups counts
}

func (s *shares) init(alone int) { s.soloLimit, s.users, s.groups = alone, counts{}, counts{} }

// share is one share of a pool. The zero share belongs to no pool.
type share struct {
	pool        *shares
	user, group *int // guarded by pool.mu
}

// acquire acquires a share.
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

// counts are counters by the hash of a name, because names can be long.
type counts map[uint64]*int

var hashSeed = maphash.MakeSeed()

// maxCounters bounds the counters, most of which are 0.
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

// slot holds the current share of a request. It is safe for concurrent use.
type slot struct {
	mu      sync.Mutex
	current share // guarded by mu
}

// release releases the current share, if there is one.
func (s *slot) release() { s.replace(share{}) }

// replace releases the current share and holds other instead. If there is no current share, it
// releases other.
func (s *slot) replace(other share) {
	s.mu.Lock()
	current := s.current
	if current.pool != nil {
		s.current, other = other, current
	}
	s.mu.Unlock()
	other.release()
}
