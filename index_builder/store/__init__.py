"""The store: a directory of generations with their updates; read generation_store.py first."""
