"""Messages of CRI and pod-resources: each .proto file has the fields that are used; the modules are generated."""
