"""Serving a pool that is cut into parts, which shards hold: processes on any machine.

switching    SetLive: which set is served, and how another one takes its place
replicas     Replicas: the shards of each part; one that lost its part loads it again
pool         Pool: asks every part, and merges what they find
asking       Asking: which replica of a part is asked, and what if it is slow or gone
body         Body: what a shard does, in whatever process it runs
ray_shards   shards as actors of a Ray cluster
"""
