"""The playground: a page that asks this server, shows why it answers so, and manages its pool and generations."""
