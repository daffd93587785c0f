"""HTTP: polyrank's own routes (native), those for other systems' clients (compat), and what both need (plumbing)."""
