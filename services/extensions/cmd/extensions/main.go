// Command extensions is the tail of the chain: it serves CustomResourceDefinitions
// and their objects, and answers 404 for the rest.
package main

import (
	"os"

	"triune.dev/services/extensions"
	"triune.dev/shared/program/command"
)

func main() { os.Exit(command.Main(extensions.Command())) }
