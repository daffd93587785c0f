"""The files of a checkpoint and of a base model: found, checked, read and written."""
