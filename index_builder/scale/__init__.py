"""Work on several machines through Ray, an extra that nothing else needs.

cluster.py connects a process to a cluster and is the only module that imports Ray; encoders.py makes a build's vectors.
"""
