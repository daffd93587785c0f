"""The store: a directory of generations with their updates.

generation_store   GenerationStore: the directory; list, open, publish, activate, roll back, collect
switch             how another generation becomes the active one, and what it receives then
snapshot           Snapshot: a part of a generation with its updates
membership         which candidates are in a part with its updates, by their ids alone
pages              the candidates of a snapshot, page by page
unmatched          why a filter lets nothing of a snapshot through
update_log         UpdateLogs: who may write updates; UpdateLog: the file of one generation
pointer            Pointer: CURRENT and HISTORY
locks              who may change the store: locks, the lease and the fence
leftovers          what a build leaves behind when it is killed, and which generations have a copy in Redis
"""
