"""Pages to look at: HTML files that need nothing beside themselves."""
