"""Routes and what goes through them."""
