// Package attack holds attacks by clients that have no rights, for measuring what other
// clients notice of them. Their pace and their number are bounded, and they are for servers
// on the loopback of this machine.
package attack
