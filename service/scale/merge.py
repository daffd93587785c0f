"""Merge what the parts of a pool have found. The result is that of one search over all of them, to the bit.

Every part returns its own best `k` candidates with their scores, so the best `k` of the pool are among them. Equal
scores are ordered by the place in the pool, as rows are where the pool is not cut.
"""

from collections.abc import Iterable, Mapping
from functools import reduce

import numpy as np

from polyrank.index_builder.store.unmatched import Looked
from polyrank.service.observe.labels import Plan
from polyrank.service.ranking.parts import PoolFound
from polyrank.service.scale.calls import PartFound

# Of parts that were searched in different ways the answer names the one that is least sure to find all.
_BY_CARE: tuple[Plan, ...] = ("scan", "matches", "selector", "index")


def merged(found: Mapping[int, PartFound], k: int, missing: Iterable[int] = ()) -> PoolFound:
    """Return the best `k` of what parts, at least one, have found.

    Args:
        found: by the number of the part in its set.
        k: how many to return.
        missing: the numbers of the parts that did not answer.
    """
    order = np.concatenate([each.order for each in found.values()])
    scores = np.concatenate([each.scores for each in found.values()])
    rows = np.concatenate([each.rows for each in found.values()])
    parts = np.repeat(np.fromiter(found, np.int64, len(found)), [len(each.rows) for each in found.values()])
    best = np.lexsort((order, -scores))[:k]
    candidates = [candidate for each in found.values() for candidate in each.candidates]
    lexical = [each.lexical for each in found.values() if each.lexical is not None]
    looked = [each.looked for each in found.values() if each.looked is not None]
    return PoolFound(
        order=order[best],
        places=np.stack([parts[best], rows[best]], axis=1),
        scores=scores[best],
        lexical=np.concatenate(lexical)[best] if len(lexical) == len(found) else None,
        looked_at=sum(each.looked_at for each in found.values()),
        bound=max(each.bound for each in found.values()),
        plan=max((each.plan for each in found.values()), key=_BY_CARE.index),
        missing=frozenset(missing),
        reduced=any(each.reduced for each in found.values()),
        candidates=[candidates[at] for at in best.tolist()] if len(candidates) == len(order) else None,
        looked=reduce(Looked.joined, looked) if len(looked) == len(found) else None,
    )
