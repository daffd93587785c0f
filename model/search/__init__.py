"""The best rows of a matrix of candidate vectors, exactly."""
