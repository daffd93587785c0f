"""The connection to Redis, and the lease that lets one builder at a time work."""
