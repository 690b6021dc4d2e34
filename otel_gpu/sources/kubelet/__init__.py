"""What a Kubernetes node tells about itself: its container runtime (CRI) and its kubelet (pod-resources), over gRPC."""
