"""The server as a process, or several."""
