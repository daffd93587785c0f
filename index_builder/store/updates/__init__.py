"""The update log of a generation, and the lock under which it is written."""
