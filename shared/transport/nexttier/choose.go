package nexttier

// candidate holds the properties of a replica that choose compares.
type candidate struct {
	condition condition
	distrusts bool
	// inFlight counts the requests of the same kind.
	inFlight int64
	// attempts counts the attempts of this request.
	attempts int
	// unreachable is set if this request could not connect.
	unreachable bool
}

// choose returns the index of the best candidate, or -1 if all are unreachable. Of equal
// candidates it returns the first from start on: incrementing start makes a round robin.
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
