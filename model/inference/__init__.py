"""How a model's forward passes run: parts.py defines each pass once, in torch; a back-end runs it."""
