package authn

import (
	"fmt"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/rest"
)

// ApplyTo sets the authenticator, the front-proxy configuration and the audiences in info.
// Unless serving is nil, it makes the server request client certificates of both CAs, and
// reload the CAs when their files change. core configures the client of core; with nil,
// only tokens of the token file authenticate.
func (o *Options) ApplyTo(info *genericapiserver.AuthenticationInfo, serving *genericapiserver.SecureServingInfo, core *rest.Config) error {
	proxies, err := o.RequestHeader.ToAuthenticationRequestHeaderConfig()
	if err != nil {
		return fmt.Errorf("--requestheader-client-ca-file=%s: %w", o.RequestHeader.ClientCAFile, err)
	}
	clients, err := o.ClientCert.GetClientCAContentProvider()
	if err != nil {
		return fmt.Errorf("--client-ca-file=%s: %w", o.ClientCert.ClientCA, err)
	}
	if err := info.ApplyClientCert(clients, serving); err != nil {
		return fmt.Errorf("--client-ca-file=%s: %w", o.ClientCert.ClientCA, err)
	}
	if proxies != nil {
		if err := info.ApplyClientCert(proxies.CAContentProvider, serving); err != nil {
			return fmt.Errorf("--requestheader-client-ca-file=%s: %w", o.RequestHeader.ClientCAFile, err)
		}
	}
	info.RequestHeaderConfig = proxies
	info.APIAudiences = o.Audiences
	info.Authenticator, err = o.authenticator(proxies, clients, core)
	return err
}

func (o *Options) authenticator(proxies *authenticatorfactory.RequestHeaderConfig, clients dynamiccertificates.CAContentProvider, core *rest.Config) (authenticator.Request, error) {
	var authenticators []authenticator.Request
	if proxies != nil {
		authenticators = append(authenticators, authenticator.WrapAudienceAgnosticRequest(o.Audiences, headerrequest.NewDynamicVerifyOptionsSecure(
			proxies.CAContentProvider.VerifyOptions, proxies.AllowedClientNames, proxies.UsernameHeaders,
			proxies.UIDHeaders, proxies.GroupHeaders, proxies.ExtraHeaderPrefixes)))
	}
	if clients != nil {
		authenticators = append(authenticators, x509.NewDynamic(clients.VerifyOptions, x509.CommonNameUserConversion))
	}
	tokens, err := o.tokenAuthenticator(core)
	if err != nil {
		return nil, err
	}
	// Browsers cannot set headers on WebSockets. They send the token as a subprotocol.
	authenticators = append(authenticators, bearertoken.New(tokens), websocket.NewProtocolAuthenticator(tokens))

	result := group.NewAuthenticatedGroupAdder(union.New(authenticators...))
	anonymousConfig, err := o.anonymous()
	if err != nil {
		return nil, err
	}
	if anonymousConfig.Enabled {
		// A wrong credential is an error and does not become anonymous.
		result = union.NewFailOnError(result, anonymous.NewAuthenticator(anonymousConfig.Conditions))
	}
	result = CacheCertificates(result, CertificateConfig{Proxies: proxies, Clients: clients, Audiences: o.Audiences})
	return AuthenticateTiers(anonymousFilter{result, anonymousConfig}, proxies), nil
}

// tokenAuthenticator returns an authenticator that looks for a token in the token file, and
// then asks core.
func (o *Options) tokenAuthenticator(core *rest.Config) (authenticator.Token, error) {
	var authenticators []authenticator.Token
	static, err := o.staticTokens()
	if err != nil {
		return nil, err
	}
	if static != nil {
		authenticators = append(authenticators, static)
	}
	if core != nil {
		reviews, err := o.tokenReviews(core)
		if err != nil {
			return nil, err
		}
		authenticators = append(authenticators, reviews)
	}
	// An empty union recognizes no token, and an unrecognized token is answered with 401.
	return tokenunion.New(authenticators...), nil
}

// staticTokens returns an authenticator for the token file, or nil if there is none.
func (o *Options) staticTokens() (authenticator.Token, error) {
	if o.TokenFile == "" {
		return nil, nil
	}
	tokens, err := tokenfile.NewCSV(o.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("--token-auth-file=%s: %w", o.TokenFile, err)
	}
	return authenticator.WrapAudienceAgnosticToken(o.Audiences, tokens), nil
}
