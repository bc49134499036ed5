package nexttier

import "context"

// Replica is the state of a replica of the next tier, as far as the proxy knows.
type Replica struct {
	// Address is an IP address and a port.
	Address string `json:"address"`
	// Condition is ready, unready (it answers) or down.
	Condition string `json:"condition"`
	// InFlight is the number of requests that the proxy has sent and that are not answered.
	InFlight int64 `json:"inFlight"`
}

// Replicas returns the replicas that are known, in the order in which they were found.
func (p *Proxy) Replicas() []Replica {
	all := []Replica{}
	for _, r := range *p.replicas.Load() {
		state := Replica{Address: r.address, Condition: condition(r.condition.Load()).String()}
		for k := range r.inFlight {
			state.InFlight += r.inFlight[k].Load()
		}
		all = append(all, state)
	}
	return all
}

type replicaKey struct{}

// ToReplica returns a context whose request goes to the replica with an address or, if it is
// not known, to none.
func ToReplica(ctx context.Context, address string) context.Context {
	return context.WithValue(ctx, replicaKey{}, address)
}

// allowedReplicas returns the replicas to which a request may go.
func (p *Proxy) allowedReplicas(ctx context.Context) []*replica {
	all := *p.replicas.Load()
	address, ok := ctx.Value(replicaKey{}).(string)
	if !ok {
		return all
	}
	for _, r := range all {
		if r.address == address {
			return []*replica{r}
		}
	}
	return nil
}
