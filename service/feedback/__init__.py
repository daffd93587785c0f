"""What was answered, what became of it, and what can be learnt from both."""
