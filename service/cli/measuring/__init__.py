"""Our own figures: what each stage costs on this machine. Comparisons with other systems live under benchmarks/."""
