// Command aggregator is the first tier of the chain: it serves APIServices, proxies requests to
// extension API servers, and forwards all other requests to core.
package main

import (
	"os"

	"triune.dev/services/aggregator"
	"triune.dev/shared/program/command"
)

func main() { os.Exit(command.Main(aggregator.Command())) }
