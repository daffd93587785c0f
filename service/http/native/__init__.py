"""The routes of polyrank's own interface, with their requests and answers."""
