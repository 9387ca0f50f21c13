{{/* Names, labels and the parts that several pods share. */}}

{{- define "penstock.name" -}}
{{- $name := .Values.fullnameOverride | default (ternary .Release.Name (printf "%s-penstock" .Release.Name) (contains "penstock" .Release.Name)) -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* The labels that select a component. They never change, because a Deployment's selector cannot. Takes (list $ "component"). */}}
{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
app.kubernetes.io/part-of: penstock
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end }}

{{- define "penstock.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default (printf "%s-onnx" .Chart.AppVersion)) -}}
{{- end }}

{{/* The name of a Secret: an existing one, else the one that the chart makes of the contents in the values. */}}
{{- define "penstock.secret" -}}
{{- $root := index . 0 }}{{- $part := index . 1 -}}
{{- $given := index $root.Values.secrets $part -}}
{{- $given.existing | default (printf "%s-%s" (include "penstock.name" $root) $part) -}}
{{- end }}

{{- define "penstock.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
# A volume with many files is not walked through at every start of a pod.
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "penstock.containerSecurity" -}}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: { drop: [ALL] }
{{- end }}

{{/* Settings that gateways, workers and runners have alike. */}}
{{- define "penstock.environment" -}}
- { name: PENSTOCK_CONFIG, value: {{ ternary "/etc/penstock/penstock.toml" .Values.settings.file (ne .Values.settings.toml "") | quote }} }
- { name: PENSTOCK_STORE__STATE_DIR, value: /var/lib/penstock }
- { name: PENSTOCK_STORE__REQUIRE, value: {{ .Values.store.require | quote }} }
- { name: PENSTOCK_STORE__DURABILITY, value: {{ .Values.store.durability | quote }} }
{{- if eq .Values.blobs.kind "bucket" }}
- { name: PENSTOCK_STORE__BLOB_URL, value: {{ .Values.blobs.url | quote }} }
{{- end }}
{{- range $name, $value := .Values.env }}
- { name: {{ $name }}, value: {{ $value | toString | quote }} }
{{- end }}
{{- end }}

{{/* Credentials of a bucket are variables of a Secret, as every client of that store reads them. */}}
{{- define "penstock.environmentFrom" -}}
{{- if and (eq .Values.blobs.kind "bucket") .Values.blobs.secret }}
envFrom: [{ secretRef: { name: {{ .Values.blobs.secret }} } }]
{{- end }}
{{- end }}

{{- define "penstock.mounts" -}}
- { name: secrets, mountPath: /run/secrets/penstock, readOnly: true }
- { name: state, mountPath: /var/lib/penstock }
- { name: tmp, mountPath: /tmp }
{{- if .Values.settings.toml }}
- { name: settings, mountPath: /etc/penstock, readOnly: true }
{{- end }}
{{- end }}

{{/* Takes (list $ secret tmpSize). */}}
{{- define "penstock.volumes" -}}
{{- $root := index . 0 -}}
- { name: secrets, secret: { secretName: {{ index . 1 }} } }
{{- if eq $root.Values.blobs.kind "volume" }}
- { name: state, persistentVolumeClaim: { claimName: {{ $root.Values.blobs.existingClaim | default (printf "%s-blobs" (include "penstock.name" $root)) }} } }
{{- else }}
- { name: state, emptyDir: {} }
{{- end }}
- { name: tmp, emptyDir: { medium: Memory, sizeLimit: {{ index . 2 }} } }
{{- if $root.Values.settings.toml }}
- { name: settings, configMap: { name: {{ include "penstock.name" $root }}-settings } }
{{- end }}
{{- end }}

{{/* Pods of a group restart when the settings change, or the Secrets that this chart makes. */}}
{{- define "penstock.checksums" -}}
checksum/settings: {{ .Values.settings.toml | sha256sum }}
checksum/secrets: {{ omit .Values.secrets "scaler" | toJson | sha256sum }}
{{- end }}

{{/* Replicas on different nodes, if the cluster has them. Takes (list $ "component"). */}}
{{- define "penstock.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "penstock.selector" . | nindent 8 }}
{{- end }}

{{- define "penstock.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "penstock.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "penstock.pullPolicy" -}}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{/* The values of a group of workers: its own over those of all groups. Takes (list $ "group"). */}}
{{- define "penstock.group" -}}
{{- $root := index . 0 -}}
{{- mergeOverwrite (deepCopy $root.Values.workerDefaults) (deepCopy (index $root.Values.workers (index . 1) | default dict)) | toJson -}}
{{- end }}

{{/* Takes (list "part" "value"). */}}
{{- define "penstock.missing" -}}
{{- fail (printf "secrets.%s.%s is empty: name a Secret of yours in secrets.%s.existing, or give what `penstock store users` wrote with --set-file secrets.%s.%s=FILE" (index . 0) (index . 1) (index . 0) (index . 0) (index . 1)) -}}
{{- end }}

{{/* Whether any group scales by itself. */}}
{{- define "penstock.scales" -}}
{{- $root := . }}{{- $scales := false }}
{{- range $group, $own := .Values.workers }}
{{- $worker := include "penstock.group" (list $root $group) | fromJson }}
{{- if $worker.autoscaling.enabled }}{{ $scales = true }}{{ end }}
{{- end }}
{{- $scales -}}
{{- end }}

{{/* Whether the workers of any group write the deletion cost of their pods. */}}
{{- define "penstock.writesCost" -}}
{{- $root := . }}{{- $ranks := false }}
{{- range $group, $own := .Values.workers }}
{{- $worker := include "penstock.group" (list $root $group) | fromJson }}
{{- if $worker.deletionCost }}{{ $ranks = true }}{{ end }}
{{- end }}
{{- $ranks -}}
{{- end }}

{{/* What a pod may reach. */}}
{{- define "penstock.egress" -}}
# Names, the store, and buckets.
- ports: [{ port: 53, protocol: UDP }, { port: 53, protocol: TCP }]
{{- if .Values.store.enabled }}
- to:
    - podSelector:
        matchLabels:
          {{- include "penstock.selector" (list . "store") | nindent 10 }}
  ports: [{ port: 6379 }]
{{- else }}
- ports:
    {{- range .Values.store.ports }}
    - { port: {{ . }} }
    {{- end }}
  {{- with .Values.store.networks }}
  to:
    {{- range . }}
    - ipBlock: { cidr: {{ . }} }
    {{- end }}
  {{- end }}
{{- end }}
{{- if eq .Values.blobs.kind "bucket" }}
- ports: [{ port: 443 }]
{{- end }}
{{- end }}
