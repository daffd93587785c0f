{{- define "polyrank.name" -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) }}
{{- $name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "polyrank.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "polyrank.labels" -}}
{{ include "polyrank.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "polyrank.container" -}}
image: {{ printf "%s:%s" .Values.image.repository .Values.image.tag | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "polyrank.mounts" -}}
- {name: store, mountPath: /store}
- {name: cache, mountPath: /cache}
- {name: tmp, mountPath: /tmp}
{{- if .Values.data }}
- {name: data, mountPath: /data, readOnly: true}
{{- end }}
{{- end }}

{{- define "polyrank.hasRedis" -}}
{{- if or .Values.redis.url .Values.redis.secret }}true{{ end -}}
{{- end }}

{{/* Names as which the Service and the Ingress reach the pods, and those of allowedHosts. */}}
{{- define "polyrank.hosts" -}}
{{- $name := include "polyrank.name" . }}
{{- $hosts := list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) }}
{{- $hosts = append $hosts (printf "%s.%s.svc.cluster.local" $name .Release.Namespace) }}
{{- if .Values.ingress.host }}{{ $hosts = append $hosts .Values.ingress.host }}{{ end }}
{{- concat $hosts .Values.allowedHosts | join "," }}
{{- end }}

{{- define "polyrank.redis" -}}
{{- if .Values.redis.secret -}}
- name: POLYRANK_REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.redis.secret }}, key: url}}
{{- else if .Values.redis.url -}}
- {name: POLYRANK_REDIS_URL, value: {{ .Values.redis.url | quote }}}
{{- end }}
{{- end }}
