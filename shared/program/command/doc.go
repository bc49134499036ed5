// Package command is the command line of the four programs: kube-apiserver's flag
// sections, logging, feature gates, signals, and the subcommands around a server.
//
// A [Spec] describes a program, whose server implements [Program]. [Main] runs it as the
// process, so that a main function is one line:
//
//	func main() { os.Exit(command.Main(aggregator.Command())) }
//
// [Run] does the same with given arguments, for tests. Each is called once in a process:
// feature gates and logging are global.
//
// The exit status is 0 after --help, --version and an orderly shutdown, and 1 after an
// error. The error is one line on stderr, "error: " and the text of [Message], which
// names the flag that it is about and its value.
package command
