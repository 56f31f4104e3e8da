{{- define "umawarden.name" -}}
{{- if contains "umawarden" .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-umawarden" (.Release.Name | trunc 42 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "umawarden.selector" -}}
app.kubernetes.io/name: umawarden
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "umawarden.labels" -}}
{{ include "umawarden.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "umawarden.account" -}}
{{- .Values.serviceAccount.name | default (ternary (include "umawarden.name" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- /* The grades whose rights the pod gets, with commas around each. */ -}}
{{- define "umawarden.grades" -}}
,{{ concat .Values.enforce .Values.rights | uniq | sortAlpha | join "," }},
{{- end -}}

{{- /* Not empty if the program uses the API server. */ -}}
{{- define "umawarden.usesApi" -}}
{{- $of := .Values.kubernetes -}}
{{- if or $of.conditions $of.events $of.extendedResource (ne $of.drain "none") (contains ",cordon," (include "umawarden.grades" .)) -}}
true
{{- end -}}
{{- end -}}

{{- /* Not empty if a pod leaves its taints and cordons to the pod that replaces it. */ -}}
{{- define "umawarden.handsOver" -}}
{{- if contains ",cordon," (include "umawarden.grades" .) -}}
true
{{- end -}}
{{- end -}}

{{- /* Not empty if the kernel's files are written: /proc and /sys of the node must be writable. */ -}}
{{- define "umawarden.writesKernel" -}}
{{- $grades := include "umawarden.grades" . -}}
{{- $bySysrq := and (contains ",reboot," $grades) (eq "allowed" (dig "reboot" "sysrq" "never" .Values.config)) -}}
{{- if or (contains ",drop," $grades) $bySysrq -}}
true
{{- end -}}
{{- end -}}

{{- /* Not empty if logind or systemd is called: a reboot, and units that start again. */ -}}
{{- define "umawarden.usesBus" -}}
{{- $grades := include "umawarden.grades" . -}}
{{- if or (eq "logind" (include "umawarden.rebootWay" .)) (contains ",restart," $grades) -}}
true
{{- end -}}
{{- end -}}

{{- /* The capabilities of a container that is not privileged: those of the unit and of its drop-ins
(packaging/systemd), and the three that keep it going when memory is short. */ -}}
{{- define "umawarden.capabilities" -}}
{{- $grades := include "umawarden.grades" . -}}
{{- $all := list "SYSLOG" "SYS_PTRACE" "DAC_READ_SEARCH" "IPC_LOCK" "SYS_NICE" "SYS_RESOURCE" -}}
{{- if contains ",evict," $grades -}}{{- $all = concat $all (list "SYS_ADMIN" "FOWNER") -}}{{- end -}}
{{- if .Values.enterNetworks -}}{{- $all = append $all "SYS_ADMIN" -}}{{- end -}}
{{- if contains ",stop," $grades -}}{{- $all = append $all "KILL" -}}{{- end -}}
{{- $all | uniq | toJson -}}
{{- end -}}

{{- /* How the node is rebooted. */ -}}
{{- define "umawarden.rebootWay" -}}
{{- if contains ",reboot," (include "umawarden.grades" .) -}}
{{- dig "reboot" "way" "logind" .Values.config -}}
{{- end -}}
{{- end -}}

{{- /* umawarden.yaml. What the chart decides is not taken from `config`: the schema refuses it there. */ -}}
{{- define "umawarden.config" -}}
{{- $own := dict "storage" (dict "path" "/var/lib/umawarden") -}}
{{- $web := dict "listen_address" (printf ":%d" (int .Values.web.port)) -}}
{{- if .Values.web.configSecret -}}{{- $_ := set $web "config_file" "/etc/umawarden-web/web.yml" -}}{{- end -}}
{{- if .Values.web.tokensSecret -}}{{- $_ := set $web "tokens_file" "/etc/umawarden-tokens/tokens.yml" -}}{{- end -}}
{{- $_ := set $own "web" $web -}}
{{- if .Values.enforce -}}
{{- $_ := set $own "enforce" .Values.enforce -}}
{{- else -}}
{{- $_ := set $own "mode" "observe" -}}
{{- end -}}
{{- $rules := ternary (list "shipped") (list) .Values.shippedRules -}}
{{- if .Values.rules -}}{{- $rules = append $rules "/etc/umawarden-rules/*.yaml" -}}{{- end -}}
{{- $_ := set $own "rule_files" $rules -}}
{{- $path := dict -}}
{{- if not .Values.privileged -}}{{- $path = dict "procfs" "/host/proc" "sysfs" "/host/sys" -}}{{- end -}}
{{- if .Values.host.criSocket -}}{{- $_ := set $path "cri_socket" .Values.host.criSocket -}}{{- end -}}
{{- if $path -}}{{- $_ := set $own "path" $path -}}{{- end -}}
{{- if .Values.gpu.library -}}{{- $_ := set $own "gpu" (dict "library" .Values.gpu.library) -}}{{- end -}}
{{- if include "umawarden.usesApi" . -}}
{{- $of := .Values.kubernetes -}}
{{- $kubernetes := dict "conditions" $of.conditions "events" $of.events "extended_resource" $of.extendedResource "drain" $of.drain -}}
{{- if include "umawarden.handsOver" . -}}
{{- $_ := set $kubernetes "daemon_set" (printf "%s/%s" .Release.Namespace (include "umawarden.name" .)) -}}
{{- end -}}
{{- if $of.drainFor -}}{{- $_ := set $kubernetes "drain_for" $of.drainFor -}}{{- end -}}
{{- $_ := set $own "kubernetes" $kubernetes -}}
{{- end -}}
{{- mergeOverwrite (deepCopy .Values.config) $own | toYaml -}}
{{- end -}}
