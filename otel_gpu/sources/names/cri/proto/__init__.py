"""CRI messages: cri.proto has the fields that are used; the Python modules are generated from it."""
