"""FAISS indexes: chosen, built, searched and measured."""
