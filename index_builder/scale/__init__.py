"""Builds and pools beyond one machine.

cluster       connects a process to a Ray cluster; the only module that imports Ray, an extra that nothing else needs
encoders      makes a build's vectors on a cluster
slots         which part of a pool a candidate belongs to, by its id
sets          a generation that is cut into parts; PartsStore: the directory
cutting       build a pool into parts
moving        cut a pool that is built already into another number of parts
updated_part  a part with its share of the updates of its set
membership    which candidates are in a part, by their ids alone
compacting    build the parts anew that updates have changed
"""
