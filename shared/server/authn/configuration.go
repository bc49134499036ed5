package authn

import (
	"errors"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/cel"
)

// configuration holds the parts of an AuthenticationConfiguration that apply to every tier,
// or the values of the corresponding flags if there is no file.
type configuration struct {
	anonymous *apiserverapi.AnonymousAuthConfig
	// fromFile is set if anonymous comes from the file.
	fromFile bool
	issuers  []apiserverapi.JWTAuthenticator
}

func loadConfiguration(file string, anonymous bool) (configuration, error) {
	result := configuration{anonymous: &apiserverapi.AnonymousAuthConfig{Enabled: anonymous}}
	if file == "" {
		return result, nil
	}
	config, err := readConfiguration(file)
	if err != nil {
		return configuration{}, err
	}
	if errs := validation.ValidateAuthenticationConfiguration(cel.NewDefaultCompiler(), config, nil); len(errs) > 0 {
		return configuration{}, errs.ToAggregate()
	}
	result.issuers = config.JWT
	if config.Anonymous != nil {
		result.anonymous, result.fromFile = config.Anonymous, true
	}
	return result, nil
}

// readConfiguration reads an AuthenticationConfiguration of any served version. Unknown and
// duplicate fields are errors: with a misspelt condition, any request would be allowed.
func readConfiguration(file string) (*apiserverapi.AuthenticationConfiguration, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	object, err := runtime.Decode(codecs.UniversalDecoder(apiserverapi.SchemeGroupVersion), data)
	if err != nil {
		return nil, err
	}
	config, ok := object.(*apiserverapi.AuthenticationConfiguration)
	if !ok {
		return nil, errors.New("not an AuthenticationConfiguration")
	}
	return config, nil
}
