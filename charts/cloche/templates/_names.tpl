{{- define "cloche.labels" -}}
app.kubernetes.io/name: cloche
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "cloche.image" -}}
{{ .root.Values.image.registry }}/{{ .name }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* A service account's name as the apiserver knows it. */}}
{{- define "cloche.user" -}}
system:serviceaccount:{{ .root.Release.Namespace }}:{{ .name }}
{{- end }}

{{/* What a process without need of anything gets. */}}
{{- define "cloche.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Where a pod runs. */}}
{{- define "cloche.placement" -}}
priorityClassName: {{ .priorityClassName }}
{{- range $field := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $ $field }}
{{ $field }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Objects that exist for an uninstall alone, before and after the rest is gone. */}}
{{- define "cloche.uninstall" -}}
helm.sh/hook: pre-delete,post-delete
helm.sh/hook-weight: {{ .weight | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
