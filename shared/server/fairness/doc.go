// Package fairness is API priority and fairness (KEP-1040) as k8s.io/apiserver has it,
// with a way past the queues for requests that would not wait in them.
//
// A queue set of k8s.io/apiserver puts every request into one of its queues, and takes it
// out again at once where there are seats: it deals a hand of queues, and works out the
// virtual time of all of them, up to 128, four times for each request and with one lock
// held. That is a fifth of what a GET costs, and says nothing as long as nobody waits: a
// queue without requests forgets what its flow has had.
//
// So while nobody waits, and there are seats, a request is taken directly: its seats are
// counted, and shown in the metrics, and that is all. The first request that finds no
// seat, and all that come until nobody waits any more, are the queue set's, which is told
// of as many seats as those that were taken directly have left. It decides who waits where,
// who is next, and who is refused, as it always does.
package fairness
