"""Parts of a pool that shards hold: processes on any machine.

shard_holder    OnShards: prepares a generation on the shards, and drops what no request needs
remote_part     RemotePart: a part, as a request asks it
replicas        Replicas: the shards of each part; one that lost its part loads it again
replica_choice  ReplicaChoice: which replica of a part is asked, and what if it is slow or gone
shard           Body: what a shard does, in whatever process it runs
ray_shards      shards as actors of a Ray cluster
"""
