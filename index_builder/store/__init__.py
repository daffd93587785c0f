"""The store: a directory of generations with their updates.

generation_store   GenerationStore: the directory; list, open, publish, activate, roll back, collect
generation         Generation: one of them, open; manifest, candidates and words read its files
snapshot           Snapshot: a generation with its updates; filters finds rows by their metadata, pages lists them
updates            UpdateLogs: who may write updates, and what a new generation receives
update_log         UpdateLog: the file
pointer            Pointer: CURRENT and HISTORY
locks              who may change the store: locks, the lease and the fence
leftovers          what a build leaves behind when it is killed
copies             which generations have a copy in Redis
"""
