"""What work costs, learnt from what it took."""

# Weight of what was known before, for each new measurement.
KEPT = 0.9
# Each refusal lowers the estimate a little: one slow moment must not end what it priced for good.
DOUBT = 0.95


class Rate:
    """What a unit costs, as the ratio of two decaying sums, so that large pieces of work count for more.

    Args:
        first: what is believed while nothing is known.
    """

    def __init__(self, first: float = 0.0) -> None:
        self._cost = first
        self._units = 1.0

    def learn(self, units: float, cost: float) -> None:
        """Take in a measurement."""
        self._cost = KEPT * self._cost + cost
        self._units = KEPT * self._units + units

    def doubt(self) -> None:
        """Believe a little less in it: nothing is learnt from work that is not done."""
        self._cost *= DOUBT

    def predict(self, units: float) -> float:
        """What so many units will cost."""
        return units * self._cost / self._units
