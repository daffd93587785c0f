"""The scan of a pool on a CPU with a copy of its rows in bytes, which leaves few rows to be scored.

Read `product.py` (the fast product of bytes), then `bounds.py` (what that product says about a score), then `scan.py`.
"""
