"""A request on its way: how much time it has, whether it is let in, and when its work is done (scheduler.py)."""
