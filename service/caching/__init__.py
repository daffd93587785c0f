"""Vectors and answers that are known already, in memory and in Redis.

Where a vector comes from:

    a candidate of the generation   its matrix; with `--vectors redis`: memory, then Redis, then the matrix (vectors.py)
    a text that was sent along      memory, then Redis (vector_cache.py); else the model encodes it

If Redis is down, a read gives nothing after 45 ms at most, and after a few failures a breaker stops asking for a while
(redis_server.py). The next source answers, and the answer says `cache_unavailable`.
"""
