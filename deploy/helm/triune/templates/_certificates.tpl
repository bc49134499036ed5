{{- /* All certificates of an installation, in YAML: for each, which authority
issues it, whose it is, under which names it serves, and how long it lives if not as
long as the others. Both ways to make them, by pki-secrets and by cert-manager, go by
this list. */ -}}
{{- define "triune.certificates" -}}
{{- $full := include "triune.fullname" . -}}
{{- range $tier := list "aggregator" "core" "extensions" }}
{{- $service := printf "%s-%s" $full $tier }}
- name: {{ $tier }}
  authority: ca
  commonName: triune-{{ $tier }}
  server: true
  names:
    - localhost
    - {{ $service }}
    - {{ $service }}.{{ $.Release.Namespace }}
    - {{ $service }}.{{ $.Release.Namespace }}.svc
    - {{ include "triune.host" (list $ $service) }}
    - {{ $full }}
    - {{ $full }}.{{ $.Release.Namespace }}
    - {{ $full }}.{{ $.Release.Namespace }}.svc
    - {{ include "triune.host" (list $ $full) }}
    - kubernetes
    - kubernetes.default
    - kubernetes.default.svc
    - kubernetes.default.svc.{{ $.Values.clusterDomain }}
    {{- range $.Values.api.extraNames }}
    {{- if not (regexMatch "^[0-9.]+$|:" .) }}
    - {{ . | quote }}
    {{- end }}
    {{- end }}
  addresses:
    - 127.0.0.1
    - {{ $.Values.api.serviceIP }}
    {{- range $.Values.api.extraNames }}
    {{- if regexMatch "^[0-9.]+$|:" . }}
    - {{ . | quote }}
    {{- end }}
    {{- end }}
{{- end }}
{{- range $tier := list "aggregator" "core" "extensions" }}
- {name: front-proxy-{{ $tier }}, authority: front-proxy-ca, commonName: "system:triune:{{ $tier }}", client: true}
{{- end }}
{{- /* The administrator, and Prometheus. */}}
- name: admin
  authority: ca
  commonName: kubernetes-admin
  organizations: ["system:masters"]
  client: true
  lifetime: {{ .Values.tls.adminLifetime }}
- {name: monitoring, authority: ca, commonName: prometheus, organizations: ["system:monitoring"], client: true}
{{- if .Values.etcd.enabled }}
{{- $service := printf "%s-etcd" $full }}
- name: etcd-server
  authority: etcd-ca
  commonName: etcd
  server: true
  client: true
  names: [localhost, {{ $service }}, "{{ include "triune.host" (list $ $service) }}", "*.{{ include "triune.host" (list $ $service) }}"]
  addresses: [127.0.0.1]
- {name: etcd-root, authority: etcd-ca, commonName: root, client: true}
{{- range $tier := list "aggregator" "core" "extensions" }}
- {name: etcd-{{ $tier }}, authority: etcd-ca, commonName: "{{ $.Values.eventLog.cluster }}-{{ $tier }}", client: true}
{{- end }}
{{- end }}
{{- if .Values.nats.enabled }}
{{- $service := printf "%s-nats" $full }}
- name: nats-server
  authority: nats-ca
  commonName: nats
  server: true
  client: true
  names: [localhost, {{ $service }}, "{{ include "triune.host" (list $ $service) }}", "*.{{ include "triune.host" (list $ $service) }}"]
  addresses: [127.0.0.1]
{{- range $tier := list "aggregator" "core" "extensions" }}
- {name: nats-{{ $tier }}, authority: nats-ca, commonName: triune-{{ $tier }}, client: true}
{{- end }}
{{- end }}
{{- end -}}

{{- define "triune.authorities" -}}
ca front-proxy-ca{{ if .Values.etcd.enabled }} etcd-ca{{ end }}{{ if .Values.nats.enabled }} nats-ca{{ end }}
{{- end -}}

{{- /* The Secrets that pki-secrets keeps: those with the keys of authorities first. */ -}}
{{- define "triune.pkiSecrets" -}}
{{- $full := include "triune.fullname" . -}}
{{- range splitList " " (include "triune.authorities" .) }}
- {{ $full }}-{{ . }}
{{- end }}
{{- range include "triune.certificates" . | fromYamlArray }}
- {{ $full }}-{{ .name }}
{{- end }}
- {{ $full }}-service-account
{{- end -}}

{{- /* What pki-secrets is told. The labels are those that stay the same from version to
version; with the annotations Helm neither deletes the Secrets of earlier versions of this
chart, which had them among its own objects, nor refuses them for another tls.mode. */ -}}
{{- define "triune.pkiList" -}}
{{- $full := include "triune.fullname" . -}}
prefix: {{ $full }}
labels:
  {{- include "triune.selector" (list . "pki") | nindent 2 }}
  app.kubernetes.io/part-of: triune
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  {{- with .Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  helm.sh/resource-policy: keep
  meta.helm.sh/release-name: {{ .Release.Name }}
  meta.helm.sh/release-namespace: {{ .Release.Namespace }}
authorityLifetime: {{ .Values.tls.selfSigned.authorityLifetime }}
lifetime: {{ .Values.tls.selfSigned.lifetime }}
authorities:
  {{- range splitList " " (include "triune.authorities" .) }}
  - {name: {{ . }}, commonName: triune-{{ . }}}
  {{- end }}
certificates:
  {{- range include "triune.certificates" . | fromYamlArray }}
  {{- $certificate := . }}
  {{- if eq .name "admin" }}
  {{- $certificate = set . "kubeconfig" (printf "https://%s:%d" (include "triune.host" (list $ $full)) (int $.Values.api.service.port)) }}
  {{- end }}
  - {{ toYaml $certificate | nindent 4 | trim }}
  {{- end }}
keys: [service-account]
{{- end -}}

{{- /* Pods restart at each step of a rotation: not every program reads authorities
again while it runs. */ -}}
{{- define "triune.rotation" -}}
{{- if and (eq .Values.tls.mode "selfSigned") .Values.tls.selfSigned.rotation -}}
triune.dev/rotation: {{ .Values.tls.selfSigned.rotation }}
{{- end -}}
{{- end -}}

{{- /* A pod that runs pki-secrets: (list $ "pki" false). */ -}}
{{- define "triune.pkiPod" -}}
{{- $root := index . 0 -}}
{{- $name := printf "%s-%s" (include "triune.fullname" $root) (index . 1) -}}
{{- $v := $root.Values.aggregator -}}
metadata:
  labels:
    {{- include "triune.selector" (list $root "pki") | nindent 4 }}
spec:
  restartPolicy: Never
  serviceAccountName: {{ $name }}
  automountServiceAccountToken: true
  enableServiceLinks: false
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  securityContext:
    {{- include "triune.podSecurity" $root | nindent 4 }}
  {{- with $v.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: pki-secrets
      image: {{ include "triune.image" (list $root $v.image) }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      args:
        - pki-secrets
        - --certificates=/etc/pki/certificates.yaml
        - --rotation={{ $root.Values.tls.selfSigned.rotation }}
        {{- if index . 2 }}
        - --delete
        {{- end }}
      resources:
        requests: {cpu: 10m, memory: 64Mi}
        limits: {memory: 256Mi}
      securityContext:
        {{- include "triune.containerSecurity" $root | nindent 8 }}
      volumeMounts:
        - {name: list, mountPath: /etc/pki, readOnly: true}
  volumes:
    - name: list
      configMap: {name: {{ $name }}}
{{- end -}}
