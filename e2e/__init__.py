"""End-to-end tests on a real Kubernetes with a real node, built and run on this machine."""
