"""Routes that answer the clients of other systems."""
