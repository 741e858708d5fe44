{{/*
Prints every object of a file. Each template below changes one kind of object by the values, and leaves the others alone.
Arguments: root (the top scope), file (under files/).
*/}}
{{- define "tenant-webhook.file" }}
{{- $root := .root }}
{{- $file := .file }}
{{- range $text := splitList "\n---\n" ($root.Files.Get (printf "files/%s" $file)) }}
{{- $object := fromYaml $text }}
{{- if and $object (include "tenant-webhook.wanted" (dict "root" $root "object" $object "file" $file)) }}
{{- if eq $object.kind "Deployment" }}
{{- $_ := include "tenant-webhook.deployment" (dict "root" $root "object" $object) }}
{{- else if eq $object.kind "ConfigMap" }}
{{- $_ := include "tenant-webhook.configmap" (dict "root" $root "object" $object) }}
{{- end }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}
{{- end }}

{{/* Not empty if the object is to be rendered. */}}
{{- define "tenant-webhook.wanted" }}
{{- $values := .root.Values }}
{{- if eq .object.kind "Namespace" }}
{{- /* The mock's file has it, too. */}}
{{- if and $values.createNamespace (hasPrefix "manifests/" .file) }}yes{{ end }}
{{- else if eq .object.kind "NetworkPolicy" }}
{{- if $values.networkPolicy.enabled }}yes{{ end }}
{{- else if eq .object.kind "PodDisruptionBudget" }}
{{- /* The only replica must be evictable, or no drain of its node would end. */}}
{{- $ours := ternary $values.webhook $values.scheduler (eq .object.metadata.name "tenant-webhook") }}
{{- if gt ($ours.replicas | int) 1 }}yes{{ end }}
{{- else if eq .object.kind "Secret" }}
{{- /* cert-manager makes it, and chooses its type. */}}
{{- if not $values.certManager.enabled }}yes{{ end }}
{{- else }}yes{{ end }}
{{- end }}

{{- define "tenant-webhook.deployment" }}
{{- $values := .root.Values }}
{{- $pod := .object.spec.template.spec }}
{{- $container := index $pod.containers 0 }}
{{- if eq .object.metadata.name "tenant-controller" }}
{{- $_ := set $container "image" $values.mock.image }}
{{- else }}
{{- $ours := ternary $values.webhook $values.scheduler (eq .object.metadata.name "tenant-webhook") }}
{{- $args := $container.args | default list }}
{{- if and (eq .object.metadata.name "tenant-webhook") $values.certManager.enabled }}
{{- $args = append $args "--cert-rotate=false" }}
{{- end }}
{{- if eq .object.metadata.name "tenant-scheduler" }}
{{- $_ := include "tenant-webhook.scheduler" . }}
{{- $args = $container.args }}
{{- end }}
{{- $args = concat $args $ours.extraArgs }}
{{- if $args }}{{ $_ := set $container "args" $args }}{{ end }}
{{- $_ := set .object.spec "replicas" ($ours.replicas | int) }}
{{- $_ := set $container "image" $ours.image }}
{{- $_ := set $container "imagePullPolicy" $ours.imagePullPolicy }}
{{- $_ := set $container "resources" $ours.resources }}
{{- range $container.env }}
{{- if eq .name "TENANT_CONTROLLER_URL" }}{{ $_ := set . "value" $values.tenantControllerURL }}{{ end }}
{{- end }}
{{- with $ours.nodeSelector }}{{ $_ := set $pod "nodeSelector" . }}{{ end }}
{{- with $ours.tolerations }}{{ $_ := set $pod "tolerations" (concat ($pod.tolerations | default list) .) }}{{ end }}
{{- end }}
{{- with $values.imagePullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end }}
{{- end }}

{{/* What the scheduler's mode changes in its Deployment. */}}
{{- define "tenant-webhook.scheduler" }}
{{- $values := .root.Values }}
{{- $template := .object.spec.template }}
{{- $container := index $template.spec.containers 0 }}
{{- if eq $values.scheduler.mode "beside" }}
{{- $args := list }}
{{- range $container.args }}
{{- $args = append $args (replace "NominatedNodeNameForExpectation=false" "NominatedNodeNameForExpectation=true" .) }}
{{- end }}
{{- $_ := set $container "args" $args }}
{{- else if eq $values.scheduler.mode "only" }}
{{- $only := .root.Files.Get "files/components/scheduler-only/scheduler-deploy.yaml" | fromYaml }}
{{- range $key, $value := $only.spec.template.spec }}
{{- if kindIs "slice" $value }}{{ $value = without $value (dict "$patch" "replace") }}{{ end }}
{{- $_ := set $template.spec $key $value }}
{{- end }}
{{- end }}
{{- /* A Pod reads its ConfigMap when it starts: another configuration takes other Pods. */}}
{{- $config := .root.Files.Get (include "tenant-webhook.schedulerConfig" $values) | fromYaml }}
{{- $_ := set $template.metadata "annotations" (dict "checksum/scheduler-config" ($config.data | toJson | sha256sum)) }}
{{- end }}

{{- define "tenant-webhook.configmap" }}
{{- $values := .root.Values }}
{{- if eq .object.metadata.name "resource-pool-config" }}
{{- with $values.pools }}{{ $_ := set $.object.data "resource-pools" . }}{{ end }}
{{- with $values.policy }}{{ $_ := set $.object.data "policy" . }}{{ end }}
{{- else if eq .object.metadata.name "tenant-scheduler-config" }}
{{- $config := .root.Files.Get (include "tenant-webhook.schedulerConfig" $values) | fromYaml }}
{{- $_ := set .object "data" $config.data }}
{{- end }}
{{- end }}

{{/* The file of the scheduler's ConfigMap. Argument: the values. */}}
{{- define "tenant-webhook.schedulerConfig" }}
{{- if eq .scheduler.mode "only" }}files/components/scheduler-only/scheduler-config.yaml
{{- else }}files/manifests/scheduler-config.yaml{{ end }}
{{- end }}
