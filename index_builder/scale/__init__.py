"""Encoders beyond one machine.

cluster   connects a process to a Ray cluster; the only module that imports Ray, an extra that nothing else needs
encoders  makes a build's vectors on a cluster
"""
