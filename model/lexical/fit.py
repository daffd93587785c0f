"""The weights of the evidence, from lists whose right reply is known.

The loss is the listwise softmax, the negative log likelihood of the right reply (Cao et al. 2007, "Learning to rank:
from pairwise approach to listwise approach", with one right document a list), plus a little L2. It is convex.

Three things decide what the lists can teach:

* They hold replies of other dialogues, so hardly a wrong one was said before. What that means is learnt by itself, from
  the same lists with an earlier turn of the conversation added, which the others' weights then do not depend on.
* Hardly a turn of theirs asks for a code or a number and says little else. So "asked" has a fixed weight: with 5, the
  reply that has the code is first even if a model finds the rest of its text unrelated. And the weight of "names" is
  not below 0, which the few names of most files cannot tell from chance.
* Every file counts the same, however many lists it has. With very few it counts less, because they teach little.
"""

from collections.abc import Sequence, Sized
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyrank.model.config import LexicalConfig
from polyrank.model.lexical.score import FEATURES, TEXT_FEATURES
from polyrank.model.measures import Ties

_L2 = 1e-3  # on weights times the deviation of their features
_LEAST_LATE = 1e-3
_ENOUGH_LISTS = 50  # a file with fewer counts in proportion: as much as others, four lists made the weights theirs
_ASKED_WEIGHT = 5.0
_LATE = 0  # its place among the weights; the features follow
_ASKED = 1 + FEATURES.index("asked")
_LEAST = {_LATE: _LEAST_LATE, 1 + FEATURES.index("names"): 0.0}
_WORDS = [place for place, name in enumerate(FEATURES, 1) if name not in (*TEXT_FEATURES, "asked")]
_SAID = [place for place, name in enumerate(FEATURES, 1) if name in TEXT_FEATURES]
_SAID_AT = [place - 1 for place in _SAID]
_EVERY = range(1, 1 + len(FEATURES))


class ScoredList(NamedTuple):
    """A list of candidates, the right one first."""

    late: NDArray[np.float64]  # scores of the model's network, (C,): by vectors, or by pairs for a Cross-encoder
    features: NDArray[np.float64]  # in the order of FEATURES, (C, F)
    repeats: int  # how many candidates at the end are earlier turns of the conversation: 1 or 0
    fold: int  # 0 or 1; lists of one dialogue have the same

    def numbers(self, repeats: bool) -> NDArray[np.float64]:
        """Return late score and features of the candidates, those at the end included or not, (C, 1 + F)."""
        table = np.column_stack([self.late, self.features])
        return table if repeats else table[: len(table) - self.repeats]


class Figures(NamedTuple):
    """How often the right reply is first, over lists whose dialogues the weights were not fitted on.

    plain: of the right replies that nobody said before: no wrong one was, so a repeated reply would lose by "said"
        what nothing in these lists gains by it. Desks repeat canned replies.
    repeats: of all, with an earlier turn of the conversation among them.
    """

    plain: float
    repeats: float


Files = Sequence[Sequence[ScoredList]]
"""Lists by the file that they were made from."""


def fit(files: Files) -> LexicalConfig:
    """Fit the weights on the lists of all files."""
    weights = _fitted(files, _EVERY)
    by_name = {name: rounded(weight) for name, weight in zip(FEATURES, weights[1:], strict=True)}
    return LexicalConfig(late_weight=rounded(weights[_LATE]), weights=by_name)


def shares(files: Files) -> dict[str, Figures]:
    """Measure what each feature adds: the late score without words, with all features, and with all but one.

    Weights are fitted on one fold of the dialogues and measured on the other, and the other way round.
    """
    kept: dict[str, Sequence[int]] = {"without words": [], "all features": _EVERY}
    for place in _EVERY:
        kept[f"without {FEATURES[place - 1]}"] = [other for other in _EVERY if other != place]
    return {name: _figures(files, places) for name, places in kept.items()}


def _figures(files: Files, places: Sequence[int]) -> Figures:
    # Lists of each fold are measured by the weights of the other one.
    fitted = [_fitted([[each for each in file if each.fold != fold] for file in files], places) for fold in (0, 1)]

    def share(some: Files, repeats: bool) -> float:
        some = [file for file in some if file]
        firsts = [np.mean([_is_first(each, fitted[each.fold], repeats) for each in file]) for file in some]
        return float(_mean(firsts, some)) if some else 0.0

    new = [[each for each in file if not each.features[0, _SAID_AT].any()] for file in files]
    return Figures(share(new, False), share(files, True))


def _mean(numbers: Sequence[ArrayLike], files: Sequence[Sized]) -> NDArray[np.float64]:
    """Return the mean over files of numbers (F, ...), by how much each file counts."""
    counts = [min(len(file), _ENOUGH_LISTS) for file in files]
    return np.asarray(np.average(np.asarray(numbers), axis=0, weights=counts))


def _is_first(each: ScoredList, weights: NDArray[np.float64], repeats: bool) -> float:
    """Return the chance that the right reply is first, where scores tie."""
    scores = each.numbers(repeats) @ weights
    return Ties.of(scores, np.arange(len(scores)) == 0).found(1)


def _fitted(files: Files, places: Sequence[int]) -> NDArray[np.float64]:
    """Return the weights (1 + F,), late score first; those of features not in `places` are 0."""
    plain, full = _packed(files, repeats=False), _packed(files, repeats=True)
    weights = np.zeros(1 + len(FEATURES))
    weights[_LATE] = 1.0
    weights[_ASKED] = _ASKED_WEIGHT if _ASKED in places else 0.0
    words = [place for place in places if place in _WORDS]
    weights = _descended(plain, weights, [_LATE, *words])
    return _descended(full, weights, [place for place in places if place in _SAID])


class _Pack(NamedTuple):
    """The lists of a file: numbers (lists, C, 1 + F); the mask (lists, C) is 0, and -inf where a list has ended."""

    numbers: NDArray[np.float64]
    mask: NDArray[np.float64]


def _packed(files: Files, repeats: bool) -> list[_Pack]:
    return [_pack([each.numbers(repeats) for each in file]) for file in files if file]


def _pack(lists: Sequence[NDArray[np.float64]]) -> _Pack:
    longest = max(map(len, lists))
    numbers = np.zeros((len(lists), longest, lists[0].shape[1]))
    mask = np.full((len(lists), longest), -np.inf)
    for row, own in enumerate(lists):
        numbers[row, : len(own)], mask[row, : len(own)] = own, 0.0
    return _Pack(numbers, mask)


def _descended(packs: Sequence[_Pack], start: NDArray[np.float64], places: Sequence[int]) -> NDArray[np.float64]:
    """Return the weights with the least loss that differ from `start` at `places` alone."""
    from scipy.optimize import minimize  # takes a tenth of a second, which only a fit needs

    if not packs or not places:
        return start
    files = [pack.numbers for pack in packs]
    deviations = np.sqrt(_mean([numbers.var(axis=(0, 1)) for numbers in files], files))
    deviations[_LATE] = 0.0  # its weight is not drawn to 0
    chosen = list(places)

    def loss(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = start.copy()
        weights[chosen] = values
        each = [_loss(pack, weights) for pack in packs]
        pulled = _L2 * deviations**2 * weights
        slope = _mean([gradient for _, gradient in each], files) + pulled
        return float(_mean([value for value, _ in each], files) + 0.5 * (pulled * weights).sum()), slope[chosen]

    bounds = [(_LEAST.get(place), None) for place in chosen]
    found = minimize(loss, start[chosen], jac=True, method="L-BFGS-B", bounds=bounds)
    weights = start.copy()
    weights[chosen] = found.x
    return weights


def _loss(pack: _Pack, weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Return the mean negative log likelihood of the first candidates, and its gradient (1 + F,)."""
    scores = pack.numbers @ weights + pack.mask
    scores -= scores.max(axis=1, keepdims=True)
    powers = np.exp(scores)
    totals = powers.sum(axis=1, keepdims=True)
    expected = np.einsum("nc,ncf->nf", powers / totals, pack.numbers)
    return float((np.log(totals[:, 0]) - scores[:, 0]).mean()), (expected - pack.numbers[:, 0]).mean(axis=0)


def rounded(weight: float) -> float:
    """Round a fitted number to the four digits that are kept of it."""
    return float(f"{weight:.4g}")
