"""What work costs, learnt from what it took."""

# Weight of what was known before, for each new measurement.
KEPT = 0.9
# Each refusal lowers the estimate a little: one slow moment must not end what it priced for good.
DOUBT = 0.95


class Rate:
    """Seconds a unit, as the ratio of two decaying sums, so that large pieces of work count for more."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._units = 0.0

    def learn(self, units: float, seconds: float) -> None:
        """Take in a measurement."""
        self._seconds = KEPT * self._seconds + seconds
        self._units = KEPT * self._units + units

    def doubt(self) -> None:
        """Believe a little less in it: nothing is learnt from work that is not done."""
        self._seconds *= DOUBT

    def predict(self, units: float) -> float:
        """Seconds that so many units will take; 0 while nothing is known."""
        return units * self._seconds / self._units if self._units else 0.0
