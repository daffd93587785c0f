"""What the words of a reply say for it, beside the score of its vector."""
