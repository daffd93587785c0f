"""What all routes share: reading bodies, errors as problems, middleware, OpenAPI."""
