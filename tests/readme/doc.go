// Package readme follows README.md: it starts the servers with make, runs the commands, and
// interrupts the servers. Nothing needs to be built before, so in a fresh clone it is the
// first command.
package readme
