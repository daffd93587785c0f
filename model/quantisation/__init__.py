"""Int8 for a checkpoint: what NNCF finds by calibration, and the proof of what it changes."""
