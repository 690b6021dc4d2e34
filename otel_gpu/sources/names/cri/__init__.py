"""The container runtime of a Kubernetes node, over the Container Runtime Interface (CRI)."""
