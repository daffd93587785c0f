"""From what was answered to a better model: the stages of a run, its gate and its canary."""
