package core

import (
	"fmt"
	"net/http"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controlplane"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"triune.dev/shared/server/resources"
)

// installIssuer serves the configuration and the keys of the ServiceAccount issuer, with
// which others verify tokens (KEP-1393). As in kube-apiserver, an issuer that is no URL has
// neither.
func (s *Server) installIssuer(completed controlplane.CompletedConfig) error {
	extra := completed.ControlPlane.Extra
	provider, err := serviceaccount.NewOpenIDMetadataProvider(extra.ServiceAccountIssuerURL, extra.ServiceAccountJWKSURI,
		s.Generic().ExternalAddress, extra.ServiceAccountPublicKeysGetter)
	if err != nil {
		klog.Background().Info("service account issuer discovery is off", "reason", err.Error())
		return nil
	}
	s.hasIssuer = true
	s.handleDocument(serviceaccount.OpenIDConfigPath, "application/json", provider.GetConfigJSON)
	s.handleDocument(serviceaccount.JWKSPath, "application/jwk-set+json", provider.GetKeysetJSON)
	return nil
}

// handleDocument routes path, with and without a trailing slash.
func (s *Server) handleDocument(path, mediaType string, get func() (body []byte, maxAge int)) {
	handler := s.GetOnly(document(mediaType, get), resources.Media{Produces: []string{mediaType}})
	s.Handle(path, handler)
	s.UnlistedHandle(path+"/", handler)
}

// document serves the result of get, which clients may cache for maxAge seconds.
func document(mediaType string, get func() (body []byte, maxAge int)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, maxAge := get()
		w.Header().Set("Content-Type", mediaType)
		w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", maxAge))
		if _, err := w.Write(body); err != nil {
			klog.FromContext(req.Context()).V(4).Info("client went away", "path", req.URL.Path)
		}
	})
}
