package authn

import (
	"errors"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
)

// readConfiguration reads an AuthenticationConfiguration of any served version.
// Unknown and repeated fields are errors: a misspelt condition would let
// everybody in.
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
