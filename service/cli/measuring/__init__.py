"""What `polyrank bench` measures, and the timing that all benchmarks share. Comparisons with others: benchmarks/."""
