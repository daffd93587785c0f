"""Where candidate i's vector is: row i of the matrix on disk (local.py), and under its id in Redis (redis.py).

What a model keeps of each candidate for a second stage lies in a block of its own, in the same two places. On the disk
both are blocks of rows (late.py), of which the matrix has one for each candidate.
encoder.py says what makes vectors, and how they are rounded.
"""
