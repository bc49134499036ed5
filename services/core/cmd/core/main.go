// Command core serves every built-in resource of Kubernetes: the middle tier of
// Triune.
package main

import (
	"os"

	"triune.dev/services/core"
	"triune.dev/shared/program/command"
)

func main() { os.Exit(command.Main(core.Command())) }
