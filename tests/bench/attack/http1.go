package attack

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"fmt"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"
)

// patience is the timeout of an attacker.
const patience = 10 * time.Second

// dial connects with one protocol. The connection is closed with ctx.
func (s *Site) dial(ctx context.Context, protocol string, identity ...tls.Certificate) (*tls.Conn, error) {
	config := s.TLS.Clone()
	config.NextProtos = []string{protocol}
	config.Certificates = identity
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: patience}, Config: config}
	conn, err := dialer.DialContext(ctx, "tcp", s.Addr)
	if err != nil {
		return nil, err
	}
	return conn.(*tls.Conn), nil
}

// http1 sends requests on a connection, which it keeps as long as the server does.
type http1 struct {
	site    *Site
	request func(i int) ([]byte, error)
	// token returns the token of the i-th request; nil means anonymous.
	token func(i int) string
	// unanswered means that responses are not read.
	unanswered bool

	conn   *tls.Conn
	reader *bufio.Reader
}

// get returns a function that makes GETs of paths.
func get(path func(i int) string) func(i int) ([]byte, error) {
	return func(i int) ([]byte, error) {
		return []byte("GET " + path(i) + " HTTP/1.1\r\nHost: x\r\n\r\n"), nil
	}
}

func (c *http1) attack(ctx context.Context, i int) error {
	request, err := c.request(i)
	if err != nil {
		return err
	}
	if c.token != nil {
		head, _ := bytes.CutSuffix(request, []byte("\r\n"))
		request = append(head, "Authorization: Bearer "+c.token(i)+"\r\n\r\n"...)
	}
	if c.conn == nil {
		if c.conn, err = c.site.dial(ctx, "http/1.1"); err != nil {
			return err
		}
		c.reader = bufio.NewReader(c.conn)
	}
	if c.unanswered {
		_, err := c.conn.Write(request)
		return err
	}
	again, err := exchange(ctx, c.conn, c.reader, request)
	if !again {
		c.close()
	}
	return err
}

func (c *http1) close() {
	if c.conn != nil {
		_ = c.conn.Close() // no longer needed
		c.conn = nil
	}
}

// exchange sends a request, reads the response, and reports whether the connection can be
// used again.
func exchange(ctx context.Context, conn net.Conn, reader *bufio.Reader, request []byte) (again bool, err error) {
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return false, err
	}
	if _, err := conn.Write(request); err != nil {
		return false, err
	}
	answer, err := http.ReadResponse(reader, nil)
	if err != nil {
		return false, err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return false, err
	}
	if answer.StatusCode < 400 {
		return false, errStatus(answer.StatusCode) // attackers are forbidden to do it
	}
	return !answer.Close, nil
}

// hugeName returns a name of 900 kB; a header may have 1 MiB.
func hugeName(i int) string { return fmt.Sprintf("%08d", i) + strings.Repeat("n", 900_000) }

// issuer is the issuer of the tests' clusters, and of most others.
const issuer = "https://kubernetes.default.svc.cluster.local"

// junk returns a token that nobody has issued: a random one, one like those of
// ServiceAccounts, or one like those for bootstrapping.
func junk(i int) string {
	random := make([]byte, 64)
	for at := range random {
		random[at] = byte(mathrand.Uint32())
	}
	encode := base64.RawURLEncoding.EncodeToString
	switch i % 3 {
	case 0:
		return encode(random)
	case 1:
		claims := fmt.Sprintf(`{"iss":%q,"aud":[%q],"exp":4102444800,"iat":1700000000,"nbf":1700000000,"sub":"system:serviceaccount:default:a%d"}`, issuer, issuer, i)
		return encode([]byte(`{"alg":"ES256"}`)) + "." + encode([]byte(claims)) + "." + encode(random)
	default:
		return fmt.Sprintf("%06x.%016x", mathrand.Uint32()&0xffffff, mathrand.Uint64())
	}
}

// impostor presents self-signed certificates, a new one for each attack.
type impostor struct{ site *Site }

func (c *impostor) attack(ctx context.Context, i int) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(int64(i) + 1), Subject: pkix.Name{CommonName: fmt.Sprintf("impostor-%d", i), Organization: []string{"system:masters"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	conn, err := c.site.dial(ctx, "http/1.1", tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = exchange(ctx, conn, bufio.NewReader(conn), []byte("GET "+forbidden+" HTTP/1.1\r\nHost: x\r\n\r\n"))
	return err
}

func (c *impostor) close() {}
