"""Files of other tools become dialogues and pools."""
