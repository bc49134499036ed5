package pki

import (
	"fmt"
	"os"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// ContextName is the name of the context, the cluster and the user in every
// kubeconfig written here.
const ContextName = "triune"

// Access is the content of a kubeconfig.
type Access struct {
	// Server is the URL, such as https://127.0.0.1:6443.
	Server string
	// CAFile is the PEM bundle that verifies the server.
	CAFile string
	// Client is the client certificate to present.
	Client Pair
}

// WriteKubeconfig writes a kubeconfig to path. The files of a are embedded, so that it can be
// copied to another machine. path is replaced atomically, with mode 0600, unless it is equal.
func WriteKubeconfig(path string, a Access) error {
	var embedded [3][]byte
	for i, name := range []string{a.CAFile, a.Client.CertFile, a.Client.KeyFile} {
		data, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("write kubeconfig: %w", err)
		}
		embedded[i] = data
	}
	data, err := Kubeconfig(a.Server, embedded[0], embedded[1], embedded[2])
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := writeIfChanged(file{path: path, mode: 0o600, data: data}); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// Kubeconfig returns a kubeconfig for the server at a URL, with embedded files in PEM: ca
// verifies the server, cert and key authenticate the client.
func Kubeconfig(server string, ca, cert, key []byte) ([]byte, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters[ContextName] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[ContextName] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts[ContextName] = &clientcmdapi.Context{Cluster: ContextName, AuthInfo: ContextName}
	config.CurrentContext = ContextName
	data, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("encode kubeconfig: %w", err)
	}
	return data, nil
}
