package eventlog

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"k8s.io/klog/v2"
)

// ConnectOptions say how to connect to NATS.
type ConnectOptions struct {
	// URLs are those of the servers. The servers of a cluster announce each other.
	URLs []string
	// Name identifies the connection in the server's monitoring.
	Name string
	// CredentialsFile holds the credentials of a user: a .creds file (a JWT and its key), the
	// seed of an nkey, or user:password. It is read again for each connection. Empty means no
	// credentials.
	CredentialsFile string
	// CAFile verifies the server; CertFile and KeyFile are a client certificate. All are read
	// again for each connection. Any of these files, or a URL with the scheme tls, enables TLS.
	CAFile, CertFile, KeyFile string
	// Inbox is the prefix of the subjects that replies arrive on; see Permissions. Empty means
	// NATS's default, which any user may be able to read.
	Inbox string
	// Options are additional options, for example a dialer for a server in the same process.
	Options []nats.Option
}

// Connect connects to NATS. If no server is available, it returns a connection that keeps
// trying. Nothing is buffered while the connection is down.
func Connect(o ConnectOptions) (*nats.Conn, error) {
	opts := []nats.Option{
		nats.Name(o.Name),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		// A user that the server does not know yet, or a certificate that is being renewed, is
		// no reason to give up.
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(250 * time.Millisecond),
		// Messages that cannot be sent now must not be sent later: the relay would find them
		// refused, and a reader has turned to etcd meanwhile.
		nats.ReconnectBufSize(-1),
		nats.PingInterval(5 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				klog.InfoS("connection to NATS is lost", "err", err)
			}
		}),
		nats.ReconnectErrHandler(refusals(o.URLs)),
		nats.ReconnectHandler(func(conn *nats.Conn) {
			klog.InfoS("connected to NATS again", "url", conn.ConnectedUrlRedacted())
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			klog.InfoS("NATS reports an error", "err", err)
		}),
	}
	if o.Inbox != "" {
		opts = append(opts, nats.CustomInboxPrefix(o.Inbox))
	}
	if o.CredentialsFile != "" {
		user, err := credentials(o.CredentialsFile)
		if err != nil {
			return nil, fmt.Errorf("NATS credentials %s: %w", o.CredentialsFile, err)
		}
		opts = append(opts, user)
	}
	if o.CAFile != "" || o.CertFile != "" || o.KeyFile != "" {
		if (o.CertFile == "") != (o.KeyFile == "") {
			return nil, errors.New("NATS: a client certificate requires both a certificate file and a key file")
		}
		opts = append(opts, o.tls())
	}
	conn, err := nats.Connect(strings.Join(o.URLs, ","), append(opts, o.Options...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return conn, nil
}

// refusals logs why connections fail. It logs a reason once until another one follows, because
// connections are attempted several times a second.
func refusals(urls []string) nats.ConnErrHandler {
	var last string // nats.go runs its handlers one at a time
	return func(_ *nats.Conn, err error) {
		if err == nil || err.Error() == last {
			return
		}
		last = err.Error()
		klog.ErrorS(err, "NATS takes no connection, events come from etcd meanwhile; see that it runs and that it knows this certificate or these credentials", "urls", redacted(urls))
	}
}

// redacted removes the passwords from URLs.
func redacted(urls []string) []string {
	out := make([]string, len(urls))
	for i, u := range urls {
		if parsed, err := url.Parse(u); err == nil {
			out[i] = parsed.Redacted()
		}
	}
	return out
}

func (o ConnectOptions) tls() nats.Option {
	var certificate nats.TLSCertHandler
	if o.CertFile != "" {
		certificate = func() (tls.Certificate, error) { return tls.LoadX509KeyPair(o.CertFile, o.KeyFile) }
	}
	var roots nats.RootCAsHandler
	if o.CAFile != "" {
		roots = func() (*x509.CertPool, error) {
			pem, err := os.ReadFile(o.CAFile)
			if err != nil {
				return nil, err
			}
			pool := x509.NewCertPool()
			if !pool.AppendCertsFromPEM(pem) {
				return nil, fmt.Errorf("%s has no certificate", o.CAFile)
			}
			return pool, nil
		}
	}
	return func(opts *nats.Options) error {
		if err := nats.Secure()(opts); err != nil {
			return err
		}
		return nats.ClientTLSConfig(certificate, roots)(opts)
	}
}

// credentials detects the kind of credentials from the content of the file.
func credentials(file string) (nats.Option, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	switch {
	case bytes.Contains(content, []byte("BEGIN NATS USER JWT")):
		return nats.UserCredentials(file), nil
	case bytes.HasPrefix(bytes.TrimSpace(content), []byte("SU")) && !bytes.ContainsRune(content, ':'):
		return nats.NkeyOptionFromSeed(file)
	case bytes.ContainsRune(content, ':'):
		return nats.UserInfoHandler(func() (string, string) {
			content, err := os.ReadFile(file)
			if err != nil {
				klog.ErrorS(err, "cannot read the credentials for NATS", "file", file)
			}
			user, password, _ := strings.Cut(strings.TrimSpace(string(content)), ":")
			return user, password
		}), nil
	}
	return nil, errors.New("neither a .creds file, nor the seed of an nkey, nor user:password")
}
