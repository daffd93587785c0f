"""The Python clients of a running server. They import neither torch nor the server."""
