"""Text on its way into a model: files of dialogues, conversations, token ids."""
