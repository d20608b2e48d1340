{{/* What the operator may do in the namespaces it watches. It asks for nothing else: e2e/test_operator_rights.py sees to that. */}}
{{- define "millrace.rules" -}}
# The resources it serves: only their users create and delete them.
- apiGroups: [streams.millrace.dev]
  resources: [streamsapps]
  verbs: [get, list, watch, patch]
- apiGroups: [streams.millrace.dev]
  resources: [streamsresets]
  verbs: [get, list, watch, patch]
- apiGroups: [streams.millrace.dev]
  resources: [streamsapps/status, streamsresets/status]
  verbs: [patch]
# What it makes for each of them, by server-side apply. It reads one by one only what it finds in the way under a name.
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
  verbs: [get, list, create, patch, delete]
# Pods and claims are the StatefulSet's; the operator rolls pods, annotates those that are to drain, keeps or deletes claims, and
# lets them grow.
- apiGroups: [""]
  resources: [pods, persistentvolumeclaims]
  verbs: [list, watch, patch, delete]
# The output of plan Jobs.
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
# The credentials that an application names: read one by one, never listed.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
# What users find in `kubectl describe`; one that comes again is counted.
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end }}
