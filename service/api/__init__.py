"""Requests and answers of polyrank's own routes, described once for server, OpenAPI document and clients."""
