"""The devices that the kubelet granted to containers of pods, over its pod-resources API."""
