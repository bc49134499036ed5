// Package advertise makes the endpoints of the Service default/kubernetes lead to the tier that
// clients connect to.
//
// A kube-apiserver writes its own address to these endpoints, and keeps it there under a lease
// in etcd. Of separate tiers, core writes the endpoints, but they must name the aggregators. So
// each aggregator runs an [Advertiser], which repeatedly puts its [Endpoint] to [Path], and the
// [Handler] of core renews the lease of that address: the address of an aggregator that has
// died disappears when its lease expires, and an aggregator that shuts down withdraws its own.
package advertise
