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

{{- define "otel-gpu.selector" -}}
app.kubernetes.io/name: {{ include "otel-gpu.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "otel-gpu.labels" -}}
{{ include "otel-gpu.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
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

{{/* A value as the agent reads it. Whole numbers come from YAML as floats, and large ones would be told as 1e+06. */}}
{{- define "otel-gpu.value" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}
{{- printf "%.0f" . }}
{{- else }}
{{- toString . }}
{{- end }}
{{- end }}

{{/* The agent's configuration file. */}}
{{- define "otel-gpu.config" -}}
{{- $config := deepCopy .Values.config }}
{{- if not .Values.kubernetesApi }}
{{- $_ := set $config "kubernetes-api" "never" }}
{{- end }}
{{- range $key, $value := $config }}
{{ $key }}: {{ include "otel-gpu.value" $value | quote }}
{{- end }}
{{- end }}

{{/* The port of HOST:PORT. */}}
{{- define "otel-gpu.port" -}}
{{- index .Values.config "listen" | toString | splitList ":" | last }}
{{- end }}

{{/* "true" where /metrics is served. */}}
{{- define "otel-gpu.scraped" -}}
{{- $exporters := index .Values.config "exporters" | default "" | toString }}
{{- $switch := index .Values.config "prometheus" | default "off" | toString | lower }}
{{- if or (contains "prometheus" $exporters) (has $switch (list "true" "on" "yes" "1")) }}true{{ end }}
{{- end }}
