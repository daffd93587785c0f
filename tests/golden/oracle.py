"""The mathematics of the scores a second time: float64 loops, written from the papers and from nothing else.

Sources: Humeau et al. 2020, "Poly-encoders" (arXiv 1905.01969); its equations carry no numbers, so the section names
them. The paper knows no `normalize` and no scales: here they are what a checkpoint's config says. What words add is
written from docs/explanation/mathematics.md, "Words".

A vector is a list of floats, a sequence of token outputs a list of vectors, without padding: what a loop does not
visit cannot take part.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

Vector = list[float]


def dot(a: Vector, b: Vector) -> float:
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total += x * y
    return total


def softmax(logits: list[float]) -> list[float]:
    highest = max(logits)
    powers = [math.exp(logit - highest) for logit in logits]
    total = sum(powers)
    return [power / total for power in powers]


def weighted_sum(weights: list[float], vectors: list[Vector]) -> Vector:
    result = [0.0] * len(vectors[0])
    for weight, vector in zip(weights, vectors, strict=True):
        for d, value in enumerate(vector):
            result[d] += weight * value
    return result


def unit(vector: Vector) -> Vector:
    length = math.sqrt(dot(vector, vector))
    return [value / length for value in vector]


def code_attention(codes: list[Vector], outputs: list[Vector], scale: float = 1.0) -> list[Vector]:
    """4.4, first equation: y_i = sum_j w_j h_j, (w_1..w_N) = softmax(c_i . h_1, .., c_i . h_N)."""
    vectors = []
    for code in codes:
        weights = softmax([scale * dot(code, h) for h in outputs])
        vectors.append(weighted_sum(weights, outputs))
    return vectors


def first_outputs(outputs: list[Vector], m: int) -> list[Vector]:
    """Appendix C, second item: (h_1 .. h_m); of N < m outputs there are N."""
    return [outputs[j] for j in range(min(m, len(outputs)))]


def last_outputs(outputs: list[Vector], m: int) -> list[Vector]:
    """Appendix C, third item: (h_{N-m+1} .. h_N)."""
    n = len(outputs)
    return [outputs[j] for j in range(n) if j >= n - m]


def last_and_first_outputs(outputs: list[Vector], m: int) -> list[Vector]:
    """Appendix C, fourth item: the last m concatenated with h_1, which counts once where it is among the last m."""
    n = len(outputs)
    return [outputs[j] for j in range(n) if j == 0 or j >= n - m]


def context_vectors(
    outputs: list[Vector],
    kind: str,
    m: int,
    codes: list[Vector] | None = None,
    code_scale: float = 1.0,
    normalize: bool = False,
) -> list[Vector]:
    """The y_i of 4.4 and Appendix C, before any score scale."""
    if normalize:
        outputs = [unit(h) for h in outputs]
    if kind == "codes":
        assert codes is not None
        assert len(codes) == m
        vectors = code_attention(codes, outputs, code_scale)
    else:
        take = {"first": first_outputs, "last": last_outputs, "last+first": last_and_first_outputs}[kind]
        vectors = take(outputs, m)
    return [unit(y) for y in vectors] if normalize else vectors


def candidate_attention(vectors: list[Vector], candidate: Vector, scale: float = 1.0) -> float:
    """4.4, second equation, as two products.

    y_ctxt = sum_i w_i y_i, (w_1..w_m) = softmax(y_cand . y_1, .., y_cand . y_m); the score is y_ctxt . y_cand.
    """
    weights = softmax([scale * dot(candidate, y) for y in vectors])
    return scale * dot(weighted_sum(weights, vectors), candidate)


def reduce(outputs: list[Vector], kind: str, m: int = 0) -> Vector:
    """red() of 4.2: the first output, the mean of all, or of the first m <= N; Appendix B: of all but the first."""
    if kind == "first":
        return outputs[0]
    taken = {"mean": outputs, "first-m mean": outputs[:m], "all-but-first mean": outputs[1:] or outputs}[kind]
    return weighted_sum([1.0 / len(taken)] * len(taken), taken)


def bi_score(
    context_outputs: list[Vector],
    candidate_outputs: list[Vector],
    kind: str,
    m: int = 0,
    normalize: bool = False,
    scale: float = 1.0,
) -> float:
    """4.2: s = y_ctxt . y_cand with y = red(T(x))."""
    context, candidate = reduce(context_outputs, kind, m), reduce(candidate_outputs, kind, m)
    if normalize:
        context, candidate = unit(context), unit(candidate)
    return scale * dot(context, candidate)


def cross_score(joint_outputs: list[Vector], weight: Vector, bias: float) -> float:
    """4.3: y = first(T(ctxt, cand)), s = y W; the linear layer has a bias, the same for every candidate."""
    return dot(joint_outputs[0], weight) + bias


@lru_cache(maxsize=4096)  # a pool's texts are asked for again and again
def words(text: str) -> tuple[str, ...]:
    """Runs of letters and digits without case; a name with a digit keeps its dots, hyphens and underscores."""
    letters = text.casefold().replace("\u2019", "'")
    found, name = [], ""
    for at, letter in enumerate(letters):
        follows = letters[at + 1 : at + 2]
        if _is_of_word(letter) or (name and letter in ".-'" and _is_of_word(follows)):
            name += letter
        is_joined = follows in {".", "-", "'"} and _is_of_word(letters[at + 2 : at + 3])
        if name and not (_is_of_word(follows) or is_joined):
            found += _parts(name.replace("'", ""))
            name = ""
    return tuple(found)


def _is_of_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


def _parts(name: str) -> list[str]:
    if any(letter.isdecimal() for letter in name):
        return [name]
    return [part for part in name.replace(".", " ").replace("-", " ").replace("_", " ").split(" ") if part]


@dataclass(frozen=True)
class Said:
    """A conversation: its turns, oldest first, each with whether the replying side said it; and the persona."""

    turns: Sequence[tuple[str, bool]]
    persona: Sequence[str] = ()


def is_own(roles: Sequence[str | None]) -> list[bool]:
    """Whether each turn, oldest first, is the replying side's: the newest is the other's, who has its role.

    Without roles the sides take turns.
    """
    last = len(roles) - 1
    if roles[last] is None:
        return [(last - at) % 2 == 1 for at in range(len(roles))]
    return [role is not None and role != roles[last] for role in roles]


class WordPool:
    """How common words are among the N replies of a pool."""

    def __init__(self, replies: Iterable[str]) -> None:
        self._count, self._length = 0, 0
        self._having: dict[str, int] = {}
        for reply in replies:
            own = words(reply)
            self._count += 1
            self._length += len(own)
            for word in set(own):
                self._having[word] = self._having.get(word, 0) + 1

    def rarity(self, word: str) -> float:
        """max(0, idf(n) - min(3.5, max(0, idf(1) - 1.5))); idf(n) = log(1 + (N - n + 0.5) / (n + 0.5))."""

        def idf(n: int) -> float:
            return math.log(1 + (self._count - n + 0.5) / (n + 0.5))

        return max(0.0, idf(self._having.get(word, 0)) - min(3.5, max(0.0, idf(1) - 1.5)))

    def bm25(self, times: int, length: int) -> float:
        """tf (k1 + 1) / (tf + k1 (1 - b + b length / average length)), k1 = 0.9, b = 0.4."""
        average = self._length / self._count if self._length else 1.0
        return times * 1.9 / (times + 0.9 * (0.6 + 0.4 * length / average))

    def terms(self, said: Said, candidate: str, weights: Mapping[str, float]) -> list[float]:
        """What is summed up to say what words add for a candidate."""
        own, ages = _own_words_and_ages(said)
        persona = {word for fact in said.persona for word in words(fact)}
        has = words(candidate)
        terms = []
        for word in dict.fromkeys(has):
            share = self.rarity(word) * self.bm25(has.count(word), len(has))
            if word in persona:
                terms.append(weights.get("persona", 0.0) * share)
            if word in persona and word in own:
                terms.append(weights.get("told", 0.0) * share)
            if word in ages:
                age = ages[word]
                weight = weights.get(("last", "before")[age] if age < 2 else "older", 0.0)
                terms.append((weight if age < 2 else weight * 0.95 ** (age - 2)) * share)
            if word in ages and len(word) >= 3 and any(letter.isdecimal() for letter in word):
                terms.append(weights.get("names", 0.0) * share)
                if ages[word] == 0:
                    letters = sum(len(each) for each, age in ages.items() if age == 0)
                    terms.append(weights.get("asked", 0.0) * len(word) / letters * share)
        terms.append(weights.get("length", 0.0) * math.log(1 + len(has)))
        if any(_are_same(turn, candidate) for turn, _ in said.turns):
            terms.append(weights.get("said", 0.0) * math.log(1 + len(has)))
        return terms

    def turns_share(self, said: Said, candidates: Sequence[str]) -> float:
        """exp(-max(0, a - e) / 0.2), by what candidates share with the turns: a of those sent but the one that shares
        the most, e of one that is drawn and has the average length."""
        if len(candidates) < 2:
            return 1.0
        turns = {"last": 1.0, "before": 1.0, "older": 1.0}
        shared = sorted(sum(self.terms(said, each, turns)) for each in candidates)[:-1]
        drawn = 0.0
        for word, age in _own_words_and_ages(said)[1].items():
            weight = 1.0 if age < 2 else 0.95 ** (age - 2)
            drawn += weight * self.rarity(word) * self._having.get(word, 0) / self._count
        return math.exp(-max(0.0, sum(shared) / len(shared) - drawn) / 0.2)


def _own_words_and_ages(said: Said) -> tuple[set[str], dict[str, int]]:
    """The words that the replying side has said, and how many turns ago each word was last said."""
    own: set[str] = set()
    ages: dict[str, int] = {}
    for age, (turn, is_own_turn) in enumerate(reversed(said.turns)):
        for word in words(turn):
            ages.setdefault(word, age)
            if is_own_turn:
                own.add(word)
    return own, ages


def _are_same(one: str, other: str) -> bool:
    if words(one) or words(other):
        return words(one) == words(other)
    return one.casefold().split() == other.casefold().split()
