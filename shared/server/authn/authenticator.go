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

// ApplyTo sets the authenticator, the front-proxy configuration and the
// audiences in info. It makes serving, unless that is nil, ask clients for
// certificates of both CAs; both are read again when their files change, for as
// long as serving is in use. core is how core is reached; nil refuses every
// token that is not in the token file.
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
	var known []authenticator.Request
	if proxies != nil {
		known = append(known, authenticator.WrapAudienceAgnosticRequest(o.Audiences, headerrequest.NewDynamicVerifyOptionsSecure(
			proxies.CAContentProvider.VerifyOptions, proxies.AllowedClientNames, proxies.UsernameHeaders,
			proxies.UIDHeaders, proxies.GroupHeaders, proxies.ExtraHeaderPrefixes)))
	}
	if clients != nil {
		known = append(known, x509.NewDynamic(clients.VerifyOptions, x509.CommonNameUserConversion))
	}
	tokens, err := o.bearer(core)
	if err != nil {
		return nil, err
	}
	// Browsers cannot set headers on WebSockets; they put the token among the
	// protocols.
	known = append(known, bearertoken.New(tokens), websocket.NewProtocolAuthenticator(tokens))

	result := group.NewAuthenticatedGroupAdder(union.New(known...))
	nobody, err := o.anonymous()
	if err != nil {
		return nil, err
	}
	if nobody.Enabled {
		// A credential that is wrong ends here and does not become anonymous.
		result = union.NewFailOnError(result, anonymous.NewAuthenticator(nobody.Conditions))
	}
	result = Certificates{Proxies: proxies, Clients: clients, Audiences: o.Audiences}.Remember(result)
	return AdmitTiers(anonymity{result, nobody}, proxies), nil
}

// bearer authenticates tokens: the static ones, then by core.
func (o *Options) bearer(core *rest.Config) (authenticator.Token, error) {
	var known []authenticator.Token
	static, err := o.tokens()
	if err != nil {
		return nil, err
	}
	if static != nil {
		known = append(known, static)
	}
	if core != nil {
		reviewed, err := o.reviewed(core)
		if err != nil {
			return nil, err
		}
		known = append(known, reviewed)
	}
	// An empty union knows no token, and a token that nobody knows is 401.
	return tokenunion.New(known...), nil
}

// tokens reads the token file; nil if there is none.
func (o *Options) tokens() (authenticator.Token, error) {
	if o.TokenFile == "" {
		return nil, nil
	}
	tokens, err := tokenfile.NewCSV(o.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("--token-auth-file=%s: %w", o.TokenFile, err)
	}
	return authenticator.WrapAudienceAgnosticToken(o.Audiences, tokens), nil
}
