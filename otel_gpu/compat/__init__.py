"""Other exporters' names: what each of them serves, in its units, labels and meanings. The table is ``exporters``."""
