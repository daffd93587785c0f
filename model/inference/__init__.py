"""How a model's forward passes run: network.py defines each pass once, in torch; a back-end runs it."""
