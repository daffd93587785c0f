"""What `polyrank evaluate` measures, and how it reports it."""
