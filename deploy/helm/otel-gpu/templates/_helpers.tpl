{{- define "otel-gpu.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "otel-gpu.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "otel-gpu.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "otel-gpu.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* A value as text. YAML numbers are floats, and large ones would be printed as 1e+06. */}}
{{- define "otel-gpu.value" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}
{{- printf "%.0f" . }}
{{- else }}
{{- toString . }}
{{- end }}
{{- end }}

{{/* A map with text values for labels, annotations and node selectors: true becomes "true". */}}
{{- define "otel-gpu.texts" -}}
{{- range $key, $value := . }}
{{ $key | quote }}: {{ include "otel-gpu.value" $value | quote }}
{{- end }}
{{- end }}

{{- define "otel-gpu.selector" -}}
app.kubernetes.io/name: {{ include "otel-gpu.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "otel-gpu.labels" -}}
{{ include "otel-gpu.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end }}

{{/* Labels of the pods. The user's take precedence, except for the selector's, which values.schema.json refuses. */}}
{{- define "otel-gpu.podLabels" -}}
{{- include "otel-gpu.texts" (merge (dict) .Values.podLabels (include "otel-gpu.labels" . | fromYaml)) | trim }}
{{- end }}

{{/* Annotations of the pods. The user's take precedence, except for the checksum, which values.schema.json refuses. */}}
{{- define "otel-gpu.podAnnotations" -}}
{{- $ours := dict "checksum/config" (include "otel-gpu.config" . | sha256sum) }}
{{- if and .Values.prometheusAnnotations (include "otel-gpu.scraped" .) }}
{{- $_ := set $ours "prometheus.io/scrape" "true" }}
{{- $_ := set $ours "prometheus.io/port" (include "otel-gpu.port" .) }}
{{- $_ := set $ours "prometheus.io/path" "/metrics" }}
{{- end }}
{{- include "otel-gpu.texts" (merge (dict) .Values.podAnnotations $ours) | trim }}
{{- end }}

{{- define "otel-gpu.account" -}}
{{- .Values.serviceAccount.name | default (ternary (include "otel-gpu.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "otel-gpu.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{/* The agent's configuration file. */}}
{{- define "otel-gpu.config" -}}
{{- $config := deepCopy .Values.config }}
{{- if not .Values.kubernetesApi }}
{{- $_ := set $config "kubernetes-api" "never" }}
{{- end }}
{{- include "otel-gpu.texts" $config | trim }}
{{- end }}

{{/* The port of HOST:PORT. */}}
{{- define "otel-gpu.port" -}}
{{- $port := index .Values.config "listen" | toString | splitList ":" | last }}
{{- if not (and (regexMatch "^[0-9]{1,5}$" $port) (ge (int $port) 1) (le (int $port) 65535)) }}
{{- fail (printf "config.listen is %q; allowed is HOST:PORT with a port from 1 to 65535" (index .Values.config "listen" | toString)) }}
{{- end }}
{{- $port }}
{{- end }}

{{/* Named ports, as JSON: the agent's own, and one for each exporter of config.compat, named without -exporter. */}}
{{- define "otel-gpu.ports" -}}
{{- $usual := dict "gpu-inference" 9201 "my-gpu-exporter" 9400 "gpu-idle-exporter" 9835 "container-gpu-exporter" 9910 "dcgm-exporter" 9400 }}
{{- $ports := list (dict "name" "metrics" "containerPort" (include "otel-gpu.port" . | int)) }}
{{- range index .Values.config "compat" | default "" | toString | splitList "," }}
{{- with trim . }}
{{- $parts := splitList ":" . }}
{{- $name := first $parts }}
{{- if not (and (hasKey $usual $name) (regexMatch "^[^:]+(:[1-9][0-9]{0,4})?$" .)) }}
{{- fail (printf "config.compat has %q; allowed is NAME or NAME:PORT of %s" . (keys $usual | sortAlpha | join ", ")) }}
{{- end }}
{{- $port := ternary (last $parts | int) (index $usual $name) (eq (len $parts) 2) }}
{{- $ports = append $ports (dict "name" (trimSuffix "-exporter" $name) "containerPort" $port) }}
{{- end }}
{{- end }}
{{- toJson $ports }}
{{- end }}

{{/* "true" if /metrics is served. */}}
{{- define "otel-gpu.scraped" -}}
{{- $exporters := index .Values.config "exporters" | default "" | toString }}
{{- $switch := index .Values.config "prometheus" | default "off" | toString | lower }}
{{- if or (contains "prometheus" $exporters) (has $switch (list "true" "on" "yes" "1")) }}true{{ end }}
{{- end }}
