"""Answers and errors in the forms that the clients of other systems expect."""
