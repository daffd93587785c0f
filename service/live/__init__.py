"""The generation that is served, and how another one takes its place."""
