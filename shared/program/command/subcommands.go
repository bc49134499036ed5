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

// subcommands returns the subcommands of every program, so that a container image needs
// no other program.
func subcommands() []*cobra.Command {
	return []*cobra.Command{healthcheckCommand(), pkiCommand(), pkiSecretsCommand(), etcdRolesCommand(), forwardCommand(), reloadCommand(), inspectCommand()}
}

// subcommand completes cmd, which takes no arguments and has help of its own instead of
// the flag sections of the server.
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
		Long: `Check whether a server is healthy, for the health checks of container engines.
The exit status is 0 if it is; otherwise it is 1, and one line says what is wrong.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFiles(cmd.Flags()); err != nil {
				return err
			}
			return check.Run(cmd.Context())
		},
	})
	fs := cmd.Flags()
	fs.StringVar(&check.URL, "url", "https://127.0.0.1:6443/readyz", "URL to get. A response with status 200 means healthy.")
	fs.StringVar(&check.CAFile, "server-ca-file", "", "File with the CA certificates that verify the server. By default those of the system.")
	fs.StringVar(&check.Client.CertFile, "client-cert-file", "", "Client certificate to present, if the server asks for one.")
	fs.StringVar(&check.Client.KeyFile, "client-key-file", "", "Private key of --client-cert-file.")
	fs.StringVar(&check.TokenFile, "token-file", "", "File with a bearer token to send, for URLs that need authentication.")
	fs.DurationVar(&check.Timeout, "timeout", 5*time.Second, "How long to wait for the response.")
	cmd.MarkFlagsRequiredTogether("client-cert-file", "client-key-file")
	return cmd
}

func forwardCommand() *cobra.Command {
	var address string
	var backends []string
	cmd := subcommand(&cobra.Command{
		Use: "forward",
		Long: `Forward TCP connections to replicas in turn, as a load balancer for several
aggregators. TLS is not terminated: it remains between the client and the replica.`,
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
	fs.StringVar(&address, "listen", "0.0.0.0:6443", "Address to listen on.")
	fs.StringSliceVar(&backends, "to", nil, "Replica to connect to, of the form host:port. A host with several addresses stands for as many replicas. Repeat the flag for several.")
	if err := cmd.MarkFlagRequired("to"); err != nil {
		panic(err) // there is no such flag
	}
	return cmd
}
