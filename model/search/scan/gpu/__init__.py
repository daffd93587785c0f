"""The scan of a pool in the memory of a GPU.

Read `scan.py` first, then `codes.py` (the queries as the GPU reads them) and `kernels.py` (Triton). `guarded.py` lets
the CPU answer when the GPU fails.
"""
