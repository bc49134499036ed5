package nexttier

// candidate is what the choice of a replica depends on.
type candidate struct {
	condition condition
	distrusts bool
	// inFlight counts the requests of the kind in question.
	inFlight int64
	// tried counts the attempts that this request has made there.
	attempts int
	// refused means that this request could not get a connection there.
	unreachable bool
}

// choose returns the index of the best candidate, or -1 if all have refused. Of
// several that are equally good it takes the first from start on, so that a
// caller who counts start up goes round.
func choose(candidates []candidate, start int) int {
	best := -1
	for i := range candidates {
		at := (start + i) % len(candidates)
		if !candidates[at].unreachable && (best < 0 || better(candidates[at], candidates[best])) {
			best = at
		}
	}
	return best
}

func better(a, b candidate) bool {
	if a.attempts != b.attempts {
		return a.attempts < b.attempts
	}
	if a.condition != b.condition {
		return a.condition < b.condition
	}
	if a.distrusts != b.distrusts {
		return b.distrusts
	}
	return a.inFlight < b.inFlight
}
