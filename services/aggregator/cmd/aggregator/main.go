// Command aggregator is the head of the chain: it serves APIServices, proxies to
// extension API servers, and passes everything else on to core.
package main

import (
	"os"

	"triune.dev/services/aggregator"
	"triune.dev/shared/program/command"
)

func main() { os.Exit(command.Main(aggregator.Command())) }
