{{- define "queenmq.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What selects; it can never change for a release. */}}
{{- define "queenmq.selector" -}}
app.kubernetes.io/name: queenmq
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "queenmq.labels" -}}
{{ include "queenmq.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "queenmq.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{- define "queenmq.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "queenmq.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end -}}

{{- define "queenmq.databaseEnv" -}}
- name: DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.database.secret.name }}
      key: {{ .Values.database.secret.key }}
{{- end -}}

{{/*
Brokers that hold connections at the same time while a fleet is replaced: those that are wanted, those that are added
first, and those that are still finishing what they have.
*/}}
{{- define "queenmq.brokersAtOnce" -}}
{{- add (int .Values.replicas) (int .Values.rollingUpdate.maxSurge) (max 1 (int .Values.rollingUpdate.maxUnavailable)) -}}
{{- end -}}

{{- define "queenmq.connections" -}}
{{- add (mul (int (include "queenmq.brokersAtOnce" .)) (add (int .Values.database.poolSize) 2)) (int .Values.database.reserved) -}}
{{- end -}}

{{- define "queenmq.check" -}}
{{- if .Values.database.maxConnections -}}
{{- $need := int (include "queenmq.connections" .) -}}
{{- if gt $need (int .Values.database.maxConnections) -}}
{{- fail (printf "the fleet does not fit PostgreSQL: %s brokers at once (replicas %d, one or more being replaced) x (database.poolSize %d + 2) + database.reserved %d = %d connections, and database.maxConnections is %d" (include "queenmq.brokersAtOnce" .) (int .Values.replicas) (int .Values.database.poolSize) (int .Values.database.reserved) $need (int .Values.database.maxConnections)) -}}
{{- end -}}
{{- end -}}
{{- if lt (int .Values.shutdown.gracePeriodSeconds) (add (int .Values.shutdown.delaySeconds) (int .Values.shutdown.timeoutSeconds)) -}}
{{- fail "shutdown.gracePeriodSeconds is shorter than shutdown.delaySeconds and shutdown.timeoutSeconds together: brokers would be killed while they stop" -}}
{{- end -}}
{{- end -}}
