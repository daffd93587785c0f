"""Trials of a compiled part: batches to run it on, and checks of its outputs.

Batches are chat of many lengths, as a model's own tokenizer reads it. Random token ids would not do: a Cross-encoder
scores nonsense nearly alike, so that ranks would be chance.

Importing this needs no torch.
"""

from collections.abc import Sequence as List
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model.architectures.batching import Batch, joined, length_batches
from polyrank.model.inference.network import Forward
from polyrank.model.text.assembly import Assembler, Conversation
from polyrank.model.text.chat import CONVERSATIONS

if TYPE_CHECKING:
    from polyrank.model.inference.parts import NetworkPart

_JOINED = 2  # conversations, one after the other, that make a long context
_REPLIES = 4  # that each conversation is paired with: its own, and those of the next ones


class Sequence(NamedTuple):
    """A tokenised input. `candidate_start`: where segment 1 begins in a joint sequence; its length in others."""

    ids: list[int]
    candidate_start: int


def sequences(part: "NetworkPart", assembler: Assembler) -> list[Sequence]:
    """Return what a part may be asked to read: contexts, candidates, 64 joint sequences, or those of one context."""
    pad_id, replies = part.backbone().pad_id, [turns[-1] for turns in CONVERSATIONS * 2]
    if part.reads == "pairs":
        starts = [(turns[:-1], replies[number : number + _REPLIES]) for number, turns in enumerate(CONVERSATIONS)]
        return [each for turns, some in starts for each in _pairs(assembler, turns, some, pad_id)]
    if part.reads == "beside":
        longest = max((turns[:-1] for turns in CONVERSATIONS), key=lambda turns: sum(map(len, turns)))
        return _pairs(assembler, longest, [text for turns in CONVERSATIONS for text in turns], pad_id)
    if part.reads in ("contexts", "known"):
        short = [turns[:end] for turns in CONVERSATIONS for end in range(1, len(turns))]
        long = [sum(CONVERSATIONS[start : start + _JOINED], ()) for start in range(0, len(CONVERSATIONS), _JOINED)]
        read = [assembler.context(Conversation.of(turns))[0] for turns in (*short, *long)]
    else:
        read, _ = assembler.candidates([text for turns in CONVERSATIONS for text in turns])
    return [Sequence(ids, len(ids)) for ids in read]


def _pairs(assembler: Assembler, turns: List[str], replies: List[str], pad_id: int) -> list[Sequence]:
    pairs, _ = assembler.pairs(Conversation.of(turns), replies)
    batch, start = joined(pairs, pad_id), len(pairs.contexts[0])
    rows = zip(batch.ids.tolist(), batch.mask.tolist(), strict=True)
    return [Sequence(ids[: sum(mask)], start) for ids, mask in rows]


# Largest relative distance from torch's outputs, by norm, that is rounding: float32 was seen at 1e-6, fp16 at 0.0016.
ROUNDING = 1e-4
# What a coarser precision may change: the cosine of any vector with float32's and its length, and for scores their rank
# correlation and their error as a share of their spread.
LEAST_COSINE = 0.9995
MOST_LENGTH = 0.01
LEAST_CORRELATION = 0.999
MOST_ERROR = 0.05
# What was compared over many lists before must be like float32 here, too, or something is broken: the mean cosine of
# vectors, or the rank correlation of scores.
LEAST_LIKENESS = 0.9
# Lengths of usual batches in tokens: one sequence alone, several, and the contexts of several callers.
_USUAL = ([24], [48, 48, 40, 40, 32, 32, 24, 24], [87] * 8)
_LARGE = [87] * 128  # only such a batch keeps a GPU busy
# Lengths that fail first: much padding, and more of it than an attention window is wide. Longer ones take too long.
_EXTREME = ([512, 1], [200, 24, 20])
# Sizes of the batches in which a text's output must be what it is alone.
_TOGETHER = (2, 3, 5, 8, 13, 21)


def usual(part: "NetworkPart", on_gpu: bool) -> list[Batch]:
    """Batches like those of real requests; speed is measured on these."""
    return _random(part, (*_USUAL, _LARGE) if on_gpu else _USUAL, False)


def extreme(part: "NetworkPart") -> list[Batch]:
    """Batches of the most unequal lengths, with both segments."""
    return _random(part, _EXTREME, True)


def agree(forward: Forward, reference: Forward, batches: list[Batch]) -> bool:
    """Whether the outputs are the reference's, within rounding in float32.

    A back-end may pad a batch further. Then outputs for each token (B, T, …) have more places than the reference's.
    """
    for batch in batches:
        width = batch.ids.shape[1]
        for ours, theirs in zip(forward(batch), reference(batch), strict=True):
            of_tokens = theirs.ndim > 1 and theirs.shape[1] == width
            if not _distance(ours[:, :width] if of_tokens else ours, theirs) <= ROUNDING:
                return False
    return True


def why_refused(
    forward: Forward, reference: Forward, texts: List[Sequence], part: "NetworkPart", was_proved: bool = False
) -> str:
    """Return why a part must not be run this way unless somebody asks for it; empty: it may.

    `texts` are what the `part` is tried on. The outputs must be near to the reference's, and each must be the same to
    the last bit alone and in batches of several sizes. was_proved: how it ranks was measured before, so outputs need
    only be like the reference's.
    """
    alone = [_outputs(forward, [each], part)[0] for each in texts]
    if not all(np.isfinite(each).all() for each in alone):
        return "its numbers are not finite"
    expected = _expected(reference, texts, part)
    if was_proved:
        why = _why_unlike(alone, expected)
    elif alone[0].ndim:
        why = _too_far(np.vstack(alone), np.vstack(expected))
    else:
        why = _misranked(alone, expected)
    if why:
        return why
    return "" if _is_same_together(forward, texts, alone, part) else "a text's output depends on its batch"


def _expected(reference: Forward, texts: List[Sequence], part: "NetworkPart") -> list[NDArray[Any]]:
    outputs: list[NDArray[Any]] = [np.empty(0)] * len(texts)
    for positions in length_batches([len(each.ids) for each in texts]):
        for position, output in zip(positions, _outputs(reference, [texts[at] for at in positions], part), strict=True):
            outputs[position] = output
    return outputs


def _why_unlike(ours: List[NDArray[Any]], theirs: List[NDArray[Any]]) -> str:
    """Return why outputs cannot be what was proved; empty: they may be."""
    if ours[0].ndim:
        likeness = float(cosines(np.vstack(ours), np.vstack(theirs)).mean())
    else:
        likeness = _rank_correlation(ours, theirs)
    if likeness >= LEAST_LIKENESS:
        return ""
    return f"its numbers are like float32's by {likeness:.3f}, less than {LEAST_LIKENESS}; run polyrank quantise again"


def _outputs(forward: Forward, texts: List[Sequence], part: "NetworkPart") -> list[NDArray[Any]]:
    """Run a batch; returns for each sequence its vectors (M, D), its vector (D,) or its score ()."""
    batch = part.laid_out([each.ids for each in texts], [each.candidate_start for each in texts])
    outputs, *masks = forward(batch)
    return [output[masks[0][row]] if masks else output for row, output in enumerate(outputs)]


def _too_far(ours: NDArray[Any], theirs: NDArray[Any]) -> str:
    """Return what is wrong with vectors (N, D); empty: nothing."""
    cosine = float(cosines(ours, theirs).min())
    if cosine < LEAST_COSINE:
        return f"a vector's cosine with that of float32 is {cosine:.5f}, less than {LEAST_COSINE}"
    apart = float(np.abs(np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1) - 1).max())
    return f"a vector's length is {apart:.1%} off" if apart > MOST_LENGTH else ""


def cosines(ours: NDArray[Any], theirs: NDArray[Any]) -> NDArray[Any]:
    """Return those of the rows of one matrix with the same rows of the other."""
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    values: NDArray[Any] = (ours * theirs).sum(axis=1) / np.maximum(lengths, np.finfo(np.float32).tiny)
    return values


def _misranked(ours: List[NDArray[Any]], theirs: List[NDArray[Any]]) -> str:
    """Return what is wrong with scores; empty: nothing."""
    scores, others = np.array(ours), np.array(theirs)
    correlation = _rank_correlation(ours, theirs)
    if not correlation >= LEAST_CORRELATION:
        return f"scores have a rank correlation of {correlation:.5f} with float32's, less than {LEAST_CORRELATION}"
    error = float(np.sqrt(np.mean((scores - others) ** 2)) / others.std())
    return f"scores are off by {error:.1%} of their spread" if error > MOST_ERROR else ""


def _rank_correlation(ours: List[NDArray[Any]], theirs: List[NDArray[Any]]) -> float:
    """Return that of scores; 0 where they are all equal."""
    scores, others = np.array(ours), np.array(theirs)
    return float(np.corrcoef(_ranks(scores), _ranks(others))[0, 1]) if scores.std() and others.std() else 0.0


def _ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the rank of each value; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks


def _is_same_together(forward: Forward, texts: List[Sequence], alone: List[NDArray[Any]], part: "NetworkPart") -> bool:
    order = np.random.default_rng(0).permutation(len(texts)).tolist()
    for size in _TOGETHER:
        positions, order = order[:size], order[size:] + order[:size]
        together = _outputs(forward, [texts[at] for at in positions], part)
        if not all(np.array_equal(output, alone[at]) for at, output in zip(positions, together, strict=True)):
            return False
    return True


def _random(part: "NetworkPart", shapes: tuple[list[int], ...], has_segments: bool) -> list[Batch]:
    rng, backbone = np.random.default_rng(0), part.backbone()
    batches = []
    for shape in shapes:
        texts = [rng.integers(backbone.vocabulary, size=min(length, backbone.max_tokens)).tolist() for length in shape]
        batches.append(part.laid_out(texts, [len(text) // 2 for text in texts] if has_segments else None))
    return batches


def _distance(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Norm of the difference, as a share of the reference's norm; infinite where a number is not finite."""
    one, other = ours.astype(np.float64), theirs.astype(np.float64)
    distance = float(np.linalg.norm(one - other) / max(np.linalg.norm(other), np.finfo(np.float64).tiny))
    return distance if np.isfinite(distance) else np.inf
