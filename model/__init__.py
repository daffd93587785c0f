"""Encoders, scoring, training and evaluation: everything that needs no server, no Redis and no FAISS."""
