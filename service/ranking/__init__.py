"""Contexts and candidates in, rankings out: read engine.py first, which holds the way of a request."""
