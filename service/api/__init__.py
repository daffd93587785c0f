"""Requests and answers of polyrank's own routes, described once for server, OpenAPI document and clients."""

CANDIDATES_CEILING = 100_000  # that one request may hold at most, whatever the setting max_candidates says
