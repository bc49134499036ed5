{{- /* All certificates of an installation, in YAML: for each, which authority
issues it, whose it is, and under which names it serves. Both ways to make them,
by Helm and by cert-manager, go by this list. */ -}}
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
