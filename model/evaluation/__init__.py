"""How well a model ranks: tasks, metrics, confidence intervals, and the mining of hard negatives."""
