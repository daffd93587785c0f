"""Serves ranking over HTTP, and the command line.

Here are the environment variables that a command reads itself: importing them takes no package.
"""

PREFIX = "POLYRANK_"
CONFIG = f"{PREFIX}CONFIG"
API_KEY = f"{PREFIX}API_KEY"  # read by clients; not a setting, but known
BACKEND = f"{PREFIX}BACKEND"
PRECISION = f"{PREFIX}PRECISION"

POOL_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"  # a name of a pool, as a pattern; "" stands for the pool without one
