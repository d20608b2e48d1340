{{/* What the operator may do in the namespaces it watches. */}}
{{- define "millrace.rules" -}}
# The resources it serves: only their users create and delete them.
- apiGroups: [streams.millrace.dev]
  resources: [streamsapps, streamsresets]
  verbs: [get, list, watch, patch]
- apiGroups: [streams.millrace.dev]
  resources: [streamsapps/status, streamsresets/status, streamsapps/finalizers, streamsresets/finalizers]
  verbs: [get, update, patch]
# What it makes for each of them, by server-side apply.
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps, services, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, watch, create, patch, delete]
# Pods and claims are the StatefulSet's; the operator rolls pods, keeps or deletes claims, and lets them grow.
- apiGroups: [""]
  resources: [pods, persistentvolumeclaims]
  verbs: [get, list, watch, patch, delete]
# The output of plan Jobs.
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
# The credentials that an application names: read one by one, never listed.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
# What users find in `kubectl describe`; one that comes again is read to be counted.
- apiGroups: [""]
  resources: [events]
  verbs: [get, create, patch]
{{- end }}

{{/* What it may do besides when it watches the whole cluster: notice new namespaces. */}}
{{- define "millrace.clusterRules" -}}
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get, list, watch]
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [get, list, watch]
{{- end }}
