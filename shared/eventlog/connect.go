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

// ConnectOptions say how to reach NATS.
type ConnectOptions struct {
	// URLs of the servers; those of a cluster tell the others by themselves.
	URLs []string
	// Name is shown by the server.
	Name string
	// CredentialsFile holds a user: a .creds file (a JWT and its key), the seed
	// of an nkey, or user:password. It is read again for each connection.
	// Empty means none.
	CredentialsFile string
	// CAFile verifies the server; CertFile and KeyFile are a client
	// certificate. All are read again for each connection. A URL with the
	// scheme tls, or any of these files, asks for TLS.
	CAFile, CertFile, KeyFile string
	// Inbox is the prefix of the subjects that answers come on; see
	// Permissions. Empty means NATS's own, which is no protection.
	Inbox string
	// Options are added, such as the way to a server in the same process.
	Options []nats.Option
}

// Connect reaches NATS. Without a server it also returns a connection, which
// goes on trying. Nothing is buffered while it is down.
func Connect(o ConnectOptions) (*nats.Conn, error) {
	opts := []nats.Option{
		nats.Name(o.Name),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		// A user that the server does not know yet, or a certificate that is being
		// renewed, is no reason to give up for ever.
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(250 * time.Millisecond),
		// What could not be sent is not sent later: the relay would find it
		// refused, and a reader has asked somebody else meanwhile.
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
			return nil, errors.New("NATS: a client certificate needs both its files")
		}
		opts = append(opts, o.tls())
	}
	conn, err := nats.Connect(strings.Join(o.URLs, ","), append(opts, o.Options...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return conn, nil
}

// refusals logs why no connection comes about, each reason once until there is
// another: attempts are made several times a second.
func refusals(urls []string) nats.ConnErrHandler {
	var last string // NATS calls its handlers one after another
	return func(_ *nats.Conn, err error) {
		if err == nil || err.Error() == last {
			return
		}
		last = err.Error()
		klog.ErrorS(err, "NATS takes no connection, events come from etcd meanwhile; see that it runs and that it knows this certificate or these credentials", "urls", redacted(urls))
	}
}

// redacted leaves the passwords out of URLs.
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

// credentials tells by its content what a file holds.
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
				klog.ErrorS(err, "credentials of NATS cannot be read", "file", file)
			}
			user, password, _ := strings.Cut(strings.TrimSpace(string(content)), ":")
			return user, password
		}), nil
	}
	return nil, errors.New("neither a .creds file, nor the seed of an nkey, nor user:password")
}
