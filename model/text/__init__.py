"""Text on its way into a model: dialogues, conversations, and their token ids."""
