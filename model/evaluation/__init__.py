"""How well a model ranks (own lists, whole pools, metrics, intervals), and the mining of hard negatives."""
