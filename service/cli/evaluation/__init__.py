"""The tasks and the report of `polyrank evaluate`."""
