"""The networks: encoders of contexts, candidates and pairs, as torch modules."""
