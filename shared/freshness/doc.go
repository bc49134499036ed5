// Package freshness finds out from etcd, for many readers with one question, whether
// what they have is the newest.
//
// A linearizable read must reflect every write that was acknowledged before the
// read began. A reader that has the bytes in memory therefore needs no bytes from
// etcd, only its word on a revision. Readers that come at the same time are asked
// for together; a reader joins only a question that has not been sent yet, for the
// answer to one that has been may be older than the reader.
package freshness
