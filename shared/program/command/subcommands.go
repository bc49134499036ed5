package command

import (
	"fmt"
	"io"
	"net"
	"time"

	"github.com/spf13/cobra"

	"triune.dev/shared/process/healthcheck"
	"triune.dev/shared/transport/l4proxy"
)

// subcommands are the small jobs around a server that every program can do
// besides serving, so that an image needs nothing but the program.
func subcommands() []*cobra.Command {
	return []*cobra.Command{healthcheckCommand(), pkiCommand(), pkiSecretsCommand(), etcdRolesCommand(), forwardCommand(), reloadCommand()}
}

// subcommand completes a command that stands below the one of the server, whose
// help and whose arguments are another matter.
func subcommand(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.NoArgs
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.DisableFlagsInUseLine = true
	cmd.Use += " [flags]"
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		writeUsage(cmd.OutOrStderr(), cmd)
		return nil
	})
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		fmt.Fprintf(cmd.OutOrStdout(), "%s\n\n", cmd.Long)
		writeUsage(cmd.OutOrStdout(), cmd)
	})
	return cmd
}

func writeUsage(out io.Writer, cmd *cobra.Command) {
	fmt.Fprintf(out, "Usage:\n  %s\n\nFlags:\n%s", cmd.UseLine(), cmd.Flags().FlagUsages())
}

func healthcheckCommand() *cobra.Command {
	var check healthcheck.Check
	cmd := subcommand(&cobra.Command{
		Use: "healthcheck",
		Long: `Ask a server whether it is healthy and exit with 0 if it is, otherwise with 1
and one line that says what is wrong. It is meant for the health checks of
container engines.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFiles(cmd.Flags()); err != nil {
				return err
			}
			return check.Run(cmd.Context())
		},
	})
	fs := cmd.Flags()
	fs.StringVar(&check.URL, "url", "https://127.0.0.1:6443/readyz", "What to ask. An answer with status 200 is health.")
	fs.StringVar(&check.CAFile, "server-ca-file", "", "File with the CA certificates that the server is verified with. By default those of the system.")
	fs.StringVar(&check.Client.CertFile, "client-cert-file", "", "Client certificate to show, for servers that ask for one.")
	fs.StringVar(&check.Client.KeyFile, "client-key-file", "", "Private key of --client-cert-file.")
	fs.StringVar(&check.TokenFile, "token-file", "", "File with a bearer token to send, for what is not for everybody.")
	fs.DurationVar(&check.Timeout, "timeout", 5*time.Second, "How long to wait for the answer.")
	cmd.MarkFlagsRequiredTogether("client-cert-file", "client-key-file")
	return cmd
}

func forwardCommand() *cobra.Command {
	var address string
	var backends []string
	cmd := subcommand(&cobra.Command{
		Use: "forward",
		Long: `Pass TCP connections on to the replicas behind a name, in turn, bytes as they
are: a load balancer in front of several aggregators where there is no other one.
TLS stays between the client and the replica.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, backend := range backends {
				if _, _, err := net.SplitHostPort(backend); err != nil {
					return fmt.Errorf("--to=%s is not of the form host:port: %w", backend, err)
				}
			}
			listener, err := (&net.ListenConfig{}).Listen(cmd.Context(), "tcp", address)
			if err != nil {
				return fmt.Errorf("--listen=%s: %w", address, err)
			}
			return (&l4proxy.Forwarder{Listener: listener, Backends: backends}).Run(cmd.Context())
		},
	})
	fs := cmd.Flags()
	fs.StringVar(&address, "listen", "0.0.0.0:6443", "The address to listen on.")
	fs.StringSliceVar(&backends, "to", nil, "Where to connect to, host:port. A host with several addresses stands for as many replicas. Repeat the flag for several.")
	if err := cmd.MarkFlagRequired("to"); err != nil {
		panic(err) // the flag is two lines above
	}
	return cmd
}
