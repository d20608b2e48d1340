{{/* The operator's permissions in the namespaces it watches. It needs all of them and no others: see e2e/test_operator_rights.py. */}}
{{- define "millrace.rules" -}}
# The resources it serves: only users create and delete them.
- apiGroups: [streams.millrace.dev]
  resources: [streamsapps]
  verbs: [get, list, watch, patch]
- apiGroups: [streams.millrace.dev]
  resources: [streamsresets]
  verbs: [get, list, watch, patch]
# A backfill may have a time to live.
- apiGroups: [streams.millrace.dev]
  resources: [streamsbackfills]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [streams.millrace.dev]
  resources: [streamsapps/status, streamsresets/status, streamsbackfills/status]
  verbs: [patch]
# The Spark jobs of backfills, for whichever Spark operator there is.
- apiGroups: [sparkoperator.k8s.io, spark.apache.org]
  resources: [sparkapplications]
  verbs: [get, list, create, delete]
# The children it creates, by server-side apply. It only gets single objects to find out who has taken a name.
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
# The StatefulSet creates pods and claims; the operator rolls pods, annotates those that should drain or know their node, keeps or deletes claims, and
# resizes them.
- apiGroups: [""]
  resources: [pods, persistentvolumeclaims]
  verbs: [list, watch, patch, delete]
# The output of plan Jobs.
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
# The credentials that an application refers to: read one by one, never listed.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
# Events, which users see in `kubectl describe`; repeated ones are counted.
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end }}
