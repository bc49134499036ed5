{{- define "triune.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Labels of the objects of one component: (list $ "core"). */ -}}
{{- define "triune.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "triune.labels" -}}
{{- $root := index . 0 -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/part-of: triune
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{ include "triune.selector" . }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* An image: (list $ .Values.core.image). */ -}}
{{- define "triune.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $name := $image.repository -}}
{{- with default $root.Values.global.imageRegistry $image.registry -}}
{{- $name = printf "%s/%s" . $name -}}
{{- end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (coalesce $image.tag $root.Values.global.imageTag $root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- /* Security: of pods, and of containers. */ -}}
{{- define "triune.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "triune.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* The full name of a Service: (list $ "triune-core"). */ -}}
{{- define "triune.host" -}}
{{- $root := index . 0 -}}
{{- printf "%s.%s.svc.%s" (index . 1) $root.Release.Namespace $root.Values.clusterDomain -}}
{{- end -}}

{{- /* The name of a Secret with ca.crt, tls.crt and tls.key: (list $ "core"). */ -}}
{{- define "triune.secret" -}}
{{- $root := index . 0 -}}
{{- $prefix := include "triune.fullname" $root -}}
{{- if eq $root.Values.tls.mode "existingSecret" -}}
{{- $prefix = $root.Values.tls.existingSecretPrefix -}}
{{- end -}}
{{- printf "%s-%s" $prefix (index . 1) -}}
{{- end -}}

{{- /* The Secret of a tier's user in etcd: (list $ "core"). */ -}}
{{- define "triune.etcdClientSecret" -}}
{{- $root := index . 0 -}}
{{- if $root.Values.etcd.enabled -}}
{{- include "triune.secret" (list $root (printf "etcd-%s" (index . 1))) -}}
{{- else -}}
{{- $root.Values.etcd.external.existingSecret -}}
{{- end -}}
{{- end -}}

{{- /* The Secret of a tier's NATS user: (list $ "core"). */ -}}
{{- define "triune.natsClientSecret" -}}
{{- $root := index . 0 -}}
{{- if $root.Values.nats.enabled -}}
{{- include "triune.secret" (list $root (printf "nats-%s" (index . 1))) -}}
{{- else -}}
{{- index $root.Values.nats.external.existingSecrets (index . 1) -}}
{{- end -}}
{{- end -}}

{{- define "triune.etcdEndpoints" -}}
{{- if .Values.etcd.enabled -}}
{{- $name := printf "%s-etcd" (include "triune.fullname" .) -}}
{{- $all := list -}}
{{- range $i := until (int .Values.etcd.replicaCount) -}}
{{- $all = append $all (printf "https://%s-%d.%s:2379" $name $i (include "triune.host" (list $ $name))) -}}
{{- end -}}
{{- join "," $all -}}
{{- else -}}
{{- join "," .Values.etcd.external.endpoints -}}
{{- end -}}
{{- end -}}

{{- define "triune.natsURLs" -}}
{{- if .Values.nats.enabled -}}
{{- $name := printf "%s-nats" (include "triune.fullname" .) -}}
{{- $all := list -}}
{{- range $i := until (int .Values.nats.replicaCount) -}}
{{- $all = append $all (printf "tls://%s-%d.%s:4222" $name $i (include "triune.host" (list $ $name))) -}}
{{- end -}}
{{- join "," $all -}}
{{- else -}}
{{- join "," .Values.nats.external.urls -}}
{{- end -}}
{{- end -}}

{{- /* Replicas are kept apart where nothing else is said: (list $ "core" .Values.core.affinity). */ -}}
{{- define "triune.affinity" -}}
{{- with index . 2 -}}
{{- toYaml . -}}
{{- else -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "triune.selector" (list (index . 0) (index . 1)) | nindent 12 }}
{{- end -}}
{{- end -}}
