"""A build from pool files to a published generation."""
