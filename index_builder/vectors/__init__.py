"""Where candidate i's vector is: row i of the matrix on disk (local.py), and under its id in Redis (redis.py).

What a model keeps of each candidate for a second stage lies in a block of its own, in the same two places. encoder.py
says what makes vectors.
"""
