package secrets

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// List says which Secrets there shall be. It is written in YAML or JSON.
type List struct {
	// Prefix is the first part of the names of all Secrets.
	Prefix string `json:"prefix"`
	// Labels and Annotations are added to every Secret.
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	// AuthorityLifetime and Lifetime are how long new authorities and leaves are valid.
	AuthorityLifetime metav1.Duration `json:"authorityLifetime"`
	Lifetime          metav1.Duration `json:"lifetime"`
	Authorities       []Authority     `json:"authorities"`
	Certificates      []Certificate   `json:"certificates"`
	// Keys are the names of keys without a certificate.
	Keys []string `json:"keys,omitempty"`
}

// Authority is a certificate authority.
type Authority struct {
	Name       string `json:"name"`
	CommonName string `json:"commonName"`
}

// Certificate is a leaf.
type Certificate struct {
	Name string `json:"name"`
	// Authority names the issuer.
	Authority     string   `json:"authority"`
	CommonName    string   `json:"commonName"`
	Organizations []string `json:"organizations,omitempty"`
	// Server and Client say what it may be shown as.
	Server bool `json:"server,omitempty"`
	Client bool `json:"client,omitempty"`
	// Names and Addresses are those of a server.
	Names     []string `json:"names,omitempty"`
	Addresses []string `json:"addresses,omitempty"`
	// Lifetime takes the place of the one of the list, unless it is 0.
	Lifetime metav1.Duration `json:"lifetime,omitzero"`
	// Kubeconfig is the URL of the server for which the Secret gets a kubeconfig.
	Kubeconfig string `json:"kubeconfig,omitempty"`
}

// Load reads a list and refuses fields that it does not know.
func Load(file string) (*List, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read list of certificates: %w", err)
	}
	var l List
	if err := yaml.UnmarshalStrict(data, &l); err != nil {
		return nil, fmt.Errorf("read list of certificates: %w", err)
	}
	if problems := l.problems(); len(problems) > 0 {
		return nil, fmt.Errorf("list of certificates: %w", errors.Join(problems...))
	}
	return &l, nil
}

// problems returns all that cannot be used.
func (l *List) problems() (all []error) {
	complain := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if l.AuthorityLifetime.Duration <= 0 || l.Lifetime.Duration <= 0 {
		complain("authorityLifetime and lifetime must be above 0")
	}
	for i, name := range l.names() {
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			complain("%q is no name of a Secret", name)
		}
		if slices.Contains(l.names()[:i], name) {
			complain("the name %q is wanted twice", name)
		}
	}
	for _, a := range l.Authorities {
		if a.CommonName == "" {
			complain("authority %q has no commonName", a.Name)
		}
	}
	for _, c := range l.Certificates {
		if !slices.ContainsFunc(l.Authorities, func(a Authority) bool { return a.Name == c.Authority }) {
			complain("certificate %q wants the unknown authority %q", c.Name, c.Authority)
		}
		if c.CommonName == "" || !c.Server && !c.Client || c.Lifetime.Duration < 0 {
			complain("certificate %q needs a commonName, server or client, and no lifetime below 0", c.Name)
		}
		for _, address := range c.Addresses {
			if net.ParseIP(address) == nil {
				complain("certificate %q: %q is no IP address", c.Name, address)
			}
		}
	}
	return all
}

// secret is the name of a Secret.
func (l *List) secret(name string) string { return l.Prefix + "-" + name }

// names are the names of all Secrets.
func (l *List) names() (all []string) {
	for _, a := range l.Authorities {
		all = append(all, l.secret(a.Name))
	}
	for _, c := range l.Certificates {
		all = append(all, l.secret(c.Name))
	}
	for _, key := range l.Keys {
		all = append(all, l.secret(key))
	}
	return all
}

func (c Certificate) usages() (all []x509.ExtKeyUsage) {
	if c.Server {
		all = append(all, x509.ExtKeyUsageServerAuth)
	}
	if c.Client {
		all = append(all, x509.ExtKeyUsageClientAuth)
	}
	return all
}

func (c Certificate) ips() (all []net.IP) {
	for _, address := range c.Addresses {
		all = append(all, net.ParseIP(address))
	}
	return all
}
