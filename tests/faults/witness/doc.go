// Package witness writes config maps, watches them, and compares the events of watchers
// with the changes.
//
// A [Ledger] has every change that the [Writer]s made, with its revision. A writer whose
// request was interrupted determines the outcome before it continues, so that the ledger
// has no gaps. A [Watcher] resumes from its last resourceVersion whenever its connection
// ends, and never lists. It must receive each change that its namespace and selector match
// once, with the right type, in order, and nothing else.
//
// The answer to a DELETE has no revision; watchers must agree on it.
package witness
