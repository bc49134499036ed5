package authn

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/util/cert"
)

// Options are the flags of authentication, with kube-apiserver's names. The flags that only
// core can use (keys of ServiceAccount tokens, OIDC, token webhooks) do not exist here.
type Options struct {
	ClientCert    genericoptions.ClientCertAuthenticationOptions
	RequestHeader genericoptions.RequestHeaderAuthenticationOptions
	// TokenFile is a CSV file: token, user name, user UID, groups.
	TokenFile string
	// Audiences are the identifiers of this API that tokens may be bound to. If there are
	// none, core decides.
	Audiences []string
	// Anonymous authenticates requests without a credential as system:anonymous.
	Anonymous bool
	// ConfigFile is an AuthenticationConfiguration. This tier uses only its anonymous
	// section; core uses its JWT issuers.
	ConfigFile string
	// ReviewCacheTTL is how long core's review of a token is cached.
	ReviewCacheTTL time.Duration
	// ReviewTimeout bounds one TokenReview.
	ReviewTimeout time.Duration

	// MaxStaleness is how long a token remains valid after core's last review while core is
	// not available. With zero it does not.
	MaxStaleness time.Duration

	anonymousSet func() bool
}

// DefaultMaxStaleness is long enough to restart core.
const DefaultMaxStaleness = 10 * time.Minute

// NewOptions returns options with kube-apiserver's defaults.
func NewOptions() *Options {
	return &Options{
		Anonymous:      true,
		ReviewCacheTTL: 10 * time.Second,
		ReviewTimeout:  10 * time.Second,
		MaxStaleness:   DefaultMaxStaleness,
		anonymousSet:   func() bool { return false },
	}
}

// AddFlags adds the flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.Audiences, "api-audiences", o.Audiences,
		"Identifiers of this API. A token must be bound to one of them. If none is given, the audiences that core accepts are accepted.")
	fs.BoolVar(&o.Anonymous, "anonymous-auth", o.Anonymous,
		"Serve requests without a credential as the user system:anonymous of the group system:unauthenticated. A wrong credential is refused in any case.")
	o.anonymousSet = func() bool { return fs.Changed("anonymous-auth") }
	fs.StringVar(&o.ConfigFile, "authentication-config", o.ConfigFile,
		"File with an AuthenticationConfiguration, of which this tier takes the anonymous section. Excludes --anonymous-auth if there is such a section.")
	o.ClientCert.AddFlags(fs)
	o.RequestHeader.AddFlags(fs)
	fs.StringVar(&o.TokenFile, "token-auth-file", o.TokenFile,
		"CSV file of static bearer tokens: token, user name, user UID and, optionally, groups.")
	fs.DurationVar(&o.ReviewCacheTTL, "authentication-token-webhook-cache-ttl", o.ReviewCacheTTL,
		"How long core's answer to a TokenReview is used again.")
	fs.DurationVar(&o.ReviewTimeout, "authentication-token-webhook-timeout", o.ReviewTimeout,
		"How long to wait for core's answer to a TokenReview.")
	fs.DurationVar(&o.MaxStaleness, "authentication-max-staleness", o.MaxStaleness,
		"While core cannot be asked, believe tokens that it has found good in this time and that have not expired. 0 refuses them with 503, like all others then.")
}

// Validate returns every problem, each naming its flag.
func (o *Options) Validate() []error {
	problems := o.RequestHeader.Validate()
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }

	clientCAs, err := readCAs("--client-ca-file", o.ClientCert.ClientCA)
	if err != nil {
		problems = append(problems, err)
	}
	proxyCAs, err := readCAs("--requestheader-client-ca-file", o.RequestHeader.ClientCAFile)
	if err != nil {
		problems = append(problems, err)
	}
	if len(o.RequestHeader.AllowedNames) == 0 && overlap(clientCAs, proxyCAs) {
		problem("--requestheader-allowed-names must be given, because --requestheader-client-ca-file and --client-ca-file " +
			"share a certificate: otherwise every client could name any user")
	}
	if o.RequestHeader.ClientCAFile != "" && len(o.RequestHeader.UsernameHeaders) == 0 {
		problem("--requestheader-username-headers must be given with --requestheader-client-ca-file")
	}
	if o.ReviewCacheTTL < 0 {
		problem("--authentication-token-webhook-cache-ttl=%s must not be negative", o.ReviewCacheTTL)
	}
	if o.ReviewTimeout <= 0 {
		problem("--authentication-token-webhook-timeout=%s must be positive", o.ReviewTimeout)
	}
	if o.MaxStaleness < 0 {
		problem("--authentication-max-staleness=%s must not be negative", o.MaxStaleness)
	}
	if slices.Contains(o.Audiences, "") {
		problem("--api-audiences must not hold an empty audience")
	}
	if _, err := o.staticTokens(); err != nil {
		problems = append(problems, err)
	}
	if _, err := o.anonymous(); err != nil {
		problems = append(problems, err)
	}
	return problems
}

func readCAs(flag, file string) ([]*x509.Certificate, error) {
	if file == "" {
		return nil, nil
	}
	certs, err := cert.CertsFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s=%s: %w", flag, file, err)
	}
	return certs, nil
}

func overlap(a, b []*x509.Certificate) bool {
	return slices.ContainsFunc(a, func(c *x509.Certificate) bool { return slices.ContainsFunc(b, c.Equal) })
}

// anonymous returns the configuration of anonymous requests.
func (o *Options) anonymous() (*apiserverapi.AnonymousAuthConfig, error) {
	config, err := loadConfiguration(o.ConfigFile, o.Anonymous)
	if err != nil {
		return nil, fmt.Errorf("--authentication-config=%s: %w", o.ConfigFile, err)
	}
	if config.fromFile && o.anonymousSet() {
		return nil, errors.New("--anonymous-auth and the anonymous section of --authentication-config exclude each other")
	}
	return config.anonymous, nil
}
