"""Contexts and candidates in, rankings out."""
