"""The operator that runs Millrace applications on Kubernetes."""
