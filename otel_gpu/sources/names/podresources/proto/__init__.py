"""Pod-resources messages: podresources.proto has the fields that are used; the Python modules are generated."""
