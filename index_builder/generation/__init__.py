"""One generation: a pool as it was built, in files that never change.

generation   Generation: all of its files, opened and checked
manifest     Manifest: what it was built from, and every file with its checksum
candidates   CandidateTable: texts and metadata; TextIndex finds a text
filters      which candidates have the metadata that a request wants
words        the inverted index of their words
"""
