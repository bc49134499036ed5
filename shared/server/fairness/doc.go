// Package fairness provides API priority and fairness (KEP-1040) of k8s.io/apiserver, with a fast
// path for requests that need not wait.
//
// A queue set of k8s.io/apiserver enqueues every request, and dequeues it at once if there
// are seats. For each request it shuffle-shards the queues and updates the virtual time of
// all of them, up to 128, four times and under one lock. That is a fifth of the cost of a
// GET. While nobody waits it decides nothing, because an empty queue forgets the past work
// of its flow.
//
// So while nobody waits and there are seats, a request is dispatched directly: only its
// seats and the metrics are counted. The first request that finds no seat, and all requests
// after it until nobody waits again, go to the queue set of k8s.io/apiserver, whose limit is
// lowered by the seats of direct requests. That queue set decides, as always, which request
// waits, which is next, and which is rejected.
//
// [Apply] replaces FeatureOptions.ApplyTo in the start-up of a tier. [New] and
// [NewQueueSetFactory] are its parts.
package fairness
