"""Which sequences go through the model together, and what that costs."""

from collections import deque
from collections.abc import Sequence
from statistics import median

from polyrank.model.architectures.batching import FORWARD_TOKENS

# Share of a batch that may be padding where that saves a forward pass.
PADDING_SHARE = 0.25
# Weight of what was known before, for each new measurement.
KEPT = 0.9
# A measurement that is so many times above or below what was known is not believed at once, or what was known is not.
UNUSUAL = 4.0
# Factor for the first refusal without a measurement after it; the n-th lowers the price by its n-th power.
DOUBT = 0.95
# Full batches whose speeds are remembered, and the fewest of them that say how long other work will take.
SPEEDS = 16
FEWEST_SPEEDS = 8
# After so many refusals without a batch in between, what was measured is forgotten.
MOST_DOUBTS = 8


def pack(lengths: Sequence[int], budget: int) -> list[int]:
    """Choose one batch: always the first sequence, and others whose lengths waste little padding.

    The batch grows by the sequence that adds the least padding, as long as all padding is worth less than another
    forward pass, and within the budget. A first sequence longer than the budget goes alone. (`length_batches` of the
    model cuts everything into batches, where nobody waits for the first of them.)

    Args:
        lengths: of sequences that wait, in tokens; the first one has waited longest.
        budget: tokens of the batch, padding included.

    Returns:
        Positions in `lengths`, the first of them 0.

    >>> pack([30, 100, 29, 31], budget=512)
    [0, 2, 3]
    """
    order = sorted(range(len(lengths)), key=lambda at: (lengths[at], at))
    low = order.index(0)
    high = low + 1  # the batch is order[low:high]
    width, tokens = lengths[0], lengths[0]
    while low > 0 or high < len(order):
        count = high - low + 1
        shorter = lengths[order[low - 1]] if low > 0 else None
        longer = lengths[order[high]] if high < len(order) else None
        # A longer one pads all that are in the batch; a shorter one is padded itself.
        takes_longer = shorter is None or (longer is not None and (longer - width) * (count - 1) <= width - shorter)
        taken = longer if takes_longer else shorter
        assert taken is not None, "one of the two is left"
        wide = max(width, taken)
        padded = wide * count
        if padded > budget or padded - tokens - taken > max(FORWARD_TOKENS, PADDING_SHARE * padded):
            break
        width, tokens = wide, tokens + taken
        low, high = (low, high + 1) if takes_longer else (low - 1, high)
    return [0, *(at for at in order[low:high] if at)]


def cost(lengths: Sequence[int]) -> int:
    """Return what a batch of these lengths costs, in tokens: padding and the forward pass itself included.

    >>> cost([30, 28])
    124
    """
    return FORWARD_TOKENS + max(lengths) * len(lengths)


class Rate:
    """Cost of a unit of work, learnt as the ratio of two decaying sums, so that large pieces of work count for more.

    A moment in which the machine stood still must not price all later work. It makes one measurement too high, and
    nothing makes one too low: what is known rises to UNUSUAL times a measurement at most, and one measurement counts
    for UNUSUAL times what is known at most.
    """

    def __init__(self) -> None:
        self._cost, self._units = 0.0, 1.0  # nothing is known, so nothing costs anything
        self._doubts = 0

    def learn(self, units: float, cost: float) -> None:
        """Take in a measurement."""
        if self._cost and cost:  # a clock may be too coarse to see the work
            cost = min(cost, UNUSUAL * units * self._cost / self._units)
            self._cost = min(self._cost, UNUSUAL * self._units * cost / units)
        self._cost = KEPT * self._cost + cost
        self._units = KEPT * self._units + units
        self._doubts = 0

    def doubt(self) -> None:
        """Lower the price, the more the more refusals are in a row: work that was refused for it teaches nothing."""
        self._doubts += 1

    def predict(self, units: float) -> float:
        """Return what so many units will cost."""
        doubted: float = DOUBT ** (self._doubts * (self._doubts + 1) / 2)
        return units * doubted * self._cost / self._units


class Speed:
    """Seconds a unit of work: the median of the last full batches, unknown until there are enough of them.

    It decides what is refused, so it must not err for long. A few slow batches, such as a model's first ones, do not
    move a median.
    """

    def __init__(self) -> None:
        self._measured: deque[float] = deque(maxlen=SPEEDS)
        self._median = 0.0
        self._doubts = 0

    def learn(self, units: float, seconds: float) -> None:
        """Take in a full batch."""
        self._measured.append(seconds / units)
        self._median = median(self._measured)
        self._doubts = 0

    def doubt(self) -> None:
        """Count a refusal: refused work teaches nothing, so now and then some must be tried."""
        self._doubts += 1
        if self._doubts == MOST_DOUBTS:
            self._measured.clear()
            self._doubts = 0

    def predict(self, units: float) -> float:
        """Return the seconds that so many units will take at least; 0 where too little is known."""
        return units * self._median if len(self._measured) >= FEWEST_SPEEDS else 0.0
