"""What all routes share: access rules, reading bodies, errors as problems, middleware, OpenAPI."""
