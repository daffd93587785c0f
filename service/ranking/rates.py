"""What a unit of work takes, learnt from what was done."""

from collections import deque

# So many measurements are remembered.
MEASUREMENTS = 16
# The n-th refusal in a row lowers a prediction by the n-th power of this; after so many all is measured anew.
DOUBT, MOST_DOUBTS = 0.92, 8


class Rate:
    """Seconds a unit of work: the median of the last measurements, each as heavy as its work.

    A moment in which the machine stood still, or a model's slow first batches, do not move it. It decides what is
    refused, and refused work teaches nothing: each refusal in a row lowers it more, so that some work is soon tried.
    """

    def __init__(self, fewest: int = 1) -> None:
        self._fewest, self._median, self._doubts = fewest, 0.0, 0
        self._measured: deque[tuple[float, float]] = deque(maxlen=MEASUREMENTS)  # seconds a unit, and units

    def learn(self, units: float, seconds: float) -> None:
        """Take in a measurement."""
        if self._doubts >= MOST_DOUBTS:
            self._measured.clear()
        self._measured.append((seconds / units, units))
        self._doubts, half = 0, sum(weight for _, weight in self._measured) / 2
        for seconds_a_unit, weight in sorted(self._measured):
            half -= weight
            if half <= 0:
                self._median = seconds_a_unit
                break

    def doubt(self) -> None:
        """Count a refusal."""
        self._doubts += 1

    def predict(self, units: float) -> float:
        """Return the seconds that so many units will take, lowered by refusals."""
        doubted: float = DOUBT ** (self._doubts * (self._doubts + 1) / 2)
        return self.measured(units) * doubted

    def measured(self, units: float) -> float:
        """Return the seconds by measurements alone; 0 before there are the `fewest`."""
        return units * self._median if len(self._measured) >= self._fewest else 0.0
