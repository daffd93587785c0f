"""The environment variables that a command reads itself, in a module that imports without pydantic."""

PREFIX = "POLYRANK_"
CONFIG = f"{PREFIX}CONFIG"
API_KEY = f"{PREFIX}API_KEY"  # read by clients; not a setting, but known
BACKEND = f"{PREFIX}BACKEND"
PRECISION = f"{PREFIX}PRECISION"
