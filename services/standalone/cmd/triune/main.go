// Command triune is the whole Kubernetes API server in one process.
package main

import (
	"os"

	"triune.dev/services/standalone"
	"triune.dev/shared/program/command"
)

func main() { os.Exit(command.Main(standalone.Command(os.Args[0]))) }
