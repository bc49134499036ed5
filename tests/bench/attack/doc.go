// Package attack holds attacks by clients without permissions, to measure their effect on
// other clients. Their rate and number are bounded, and they are for servers on the
// loopback address of this machine.
package attack
