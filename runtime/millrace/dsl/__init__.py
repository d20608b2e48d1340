"""What users write: streams, tables, windows and joins, compiled to a physical topology."""
