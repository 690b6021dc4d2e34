"""Messages of CRI and pod-resources: ours in the .proto files, with only what is used; made from them, the rest."""
