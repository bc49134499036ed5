// Package witness writes config maps, watches them, and compares what watchers
// were told with what happened.
//
// A [Ledger] has every change that the [Writer]s made, with the revision that
// they were given. A writer whose request broke off finds out what became of it
// before it goes on, so that the ledger has no holes. A [Watcher] resumes from
// its last resourceVersion whenever its connection ends, and never lists. It must
// be told each change that its namespace and selector let through once, with the
// right type, in order, and nothing else.
//
// A DELETE is not answered with a revision; watchers must agree on it.
package witness
