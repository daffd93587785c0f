"""Which sequences go through the model together."""

from collections.abc import Sequence

from polyrank.model.architectures.batching import FORWARD_TOKENS

# Padding of a batch that is worth one forward less, as a share of the batch.
PADDING_SHARE = 0.25


def pack(lengths: Sequence[int], budget: int) -> list[int]:
    """Choose a batch: always the first sequence, and of the others those whose lengths waste little padding.

    The batch grows by the sequence that adds the least padding, as long as all of it stays worth less than another
    forward, and within the budget. A first sequence longer than the budget goes alone.

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
    """What a batch of these lengths costs, in tokens: padding and the forward itself included.

    >>> cost([30, 28])
    124
    """
    return FORWARD_TOKENS + max(lengths) * len(lengths)
