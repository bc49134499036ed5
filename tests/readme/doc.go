// Package readme does what README.md tells its reader to do: it starts the servers
// with make, types the commands, and ends the servers as Ctrl-C does. It assumes
// nothing to be built, so in a fresh clone it is the first command.
package readme
