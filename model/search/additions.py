"""What a query adds to the scores of candidate attention, a number for each row: the part of the score by words.

It is made where words are read, also by builders, which do without torch.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Additions:
    """Makes the score of a row `late_weight * late + values[row]`, where `late` is its score by candidate attention.

    Attributes:
        late_weight: finite and above 0.
        values: (N,) float32, finite; a number for each row of the pool.

    Raises:
        ValueError: the late weight is not finite and above 0.
    """

    late_weight: float
    values: NDArray[np.float32]

    def __post_init__(self) -> None:
        if not 0 < self.late_weight < math.inf:
            raise ValueError(f"late_weight is {self.late_weight}; it must be finite and above 0")

    def to(self, late: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the scores of rows whose late scores these are, (N,), computed in float64."""
        return (self.late_weight * late.astype(np.float64) + self.values).astype(np.float32)
