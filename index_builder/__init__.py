"""Turn a pool of candidates into a checksummed generation on disk: embeddings, index, manifest and the model itself.

Knows `model` and the store; knows nothing of HTTP. Nothing here imports torch except `__main__`, inside its functions.
"""
