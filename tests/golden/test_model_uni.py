"""A Uni-Encoder's scores against one long sequence in float64, under the mask that its paper or its design draws."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden.numpy_bert import Array, Weights
from tiny import CLS, SEP, word_ids, write_base
from tiny_training import dialogue, settings, trained

import polyrank
from polyrank.model.evaluation.rankings import rank_lists
from polyrank.model.rankers.networks import UniRanker
from polyrank.model.registry import UniConfig
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.training.objective import Batch
from polyrank.model.training.pair_objective import PairObjective
from polyrank.model.training.student import start

CONTEXTS = ["w1", "w2 w3 w4 w5", "w30 w31 w32 w33 w34 w35 w36 w37 w38"]
REPLIES = ["w1 w2", "w3", "w4 w5 w6 w7 w8 w9 w10"]
TOLERANCE = 2e-4
KINDS = {
    "one-way": UniConfig(), "first": UniConfig(state="first"), "arrow": UniConfig(mask="arrow"),
    "arrow, first": UniConfig(mask="arrow", state="first"),
}  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("uni"), KINDS[request.param])


def made(directory: Path, block: UniConfig, **fields: Any) -> Path:
    base = write_base(directory / "base", 7)
    given = {"mask": block.mask, "score_state": block.state, **fields}
    return trained(base, directory / "model", architecture="uni", **given)


def ranker_of(checkpoint: Path, **runner: Any) -> UniRanker:
    ranker = polyrank.load(checkpoint, **runner)
    assert isinstance(ranker, UniRanker)
    return ranker


def expected(checkpoint: Path, block: UniConfig, context: str, replies: Sequence[str]) -> Array:
    """The scores of replies that are sent together, (n,): a token of the long sequence at a time."""
    weights = Weights(checkpoint)
    head = [CLS, *word_ids(context), SEP]
    ids, places, owner = [*head], [*range(len(head))], [-1] * len(head)
    for number, reply in enumerate(replies):
        own = [*word_ids(reply), SEP]
        ids += own
        places += range(len(head), len(head) + len(own))
        owner += [number] * len(own)
    sees = np.zeros((len(ids), len(ids)), bool)
    for query, one in enumerate(owner):
        for key, other in enumerate(owner):
            of_context = one == -1 and (other == -1 or block.mask == "arrow")
            sees[query, key] = of_context or (one >= 0 and other in (-1, one))
    states = weights.seeing("encoder", ids, places, [int(each >= 0) for each in owner], sees)
    scores = []
    for number in range(len(replies)):
        own_states = [states[at] for at, each in enumerate(owner) if each == number]
        read = own_states[0] if block.state == "first" else sum(own_states) / len(own_states)
        scores.append(float(weights["head.weight"][0] @ read + weights["head.bias"][0]))
    return np.array(scores)


def block_of(ranker: UniRanker) -> UniConfig:
    return ranker.config.block(UniConfig)


def by_reply(ranked: list[tuple[int, float]]) -> list[float]:
    return [score for _, score in sorted(ranked)]


def test_every_way_to_a_score_gives_that_of_the_long_sequence(checkpoint: Path) -> None:
    ranker = ranker_of(checkpoint)
    scores = np.array([expected(checkpoint, block_of(ranker), text, REPLIES) for text in CONTEXTS])
    assert np.ptp(scores, axis=1).max() > 100 * TOLERANCE
    ranked = [by_reply(ranker.rank(text, REPLIES)) for text in CONTEXTS]
    np.testing.assert_allclose(ranked, scores, rtol=0, atol=TOLERANCE)
    lists = [Dialogue(Conversation.of(text), REPLIES[0], candidates=tuple(REPLIES)) for text in CONTEXTS]
    np.testing.assert_allclose(rank_lists(ranker, lists, lambda *_: None).scores, scores, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("chunk_tokens", [4096, 24])
def test_so_does_the_matrix_of_training_however_it_is_cut(checkpoint: Path, chunk_tokens: int) -> None:
    block = block_of(ranker_of(checkpoint))
    given = {"mask": block.mask, "score_state": block.state, "negatives": 2, "chunk_tokens": chunk_tokens}
    config = settings(checkpoint, architecture="uni", **given)
    student = start(config)
    student.encoder.eval()
    prepared = PairObjective(student, config, torch.device("cpu")).prepare(
        Batch([dialogue(text, REPLIES[0], *REPLIES[1:]) for text in CONTEXTS], [], random.Random(0))
    )
    assert (len(prepared.chunks) == 1) == (chunk_tokens == 4096)
    with torch.no_grad():
        matrix = prepared.scored([encode() for encode in prepared.chunks]).scores.numpy()
    scores = [expected(checkpoint, block, text, REPLIES) for text in CONTEXTS]
    np.testing.assert_allclose(matrix, scores, rtol=0, atol=TOLERANCE)


def test_with_arrow_alone_a_score_depends_on_the_others(checkpoint: Path) -> None:
    ranker = ranker_of(checkpoint)
    block = block_of(ranker)
    alone = np.array([by_reply(ranker.rank(CONTEXTS[1], [reply]))[0] for reply in REPLIES])
    own = [expected(checkpoint, block, CONTEXTS[1], [reply])[0] for reply in REPLIES]
    np.testing.assert_allclose(alone, own, rtol=0, atol=TOLERANCE)
    apart = np.abs(alone - by_reply(ranker.rank(CONTEXTS[1], REPLIES))).max()
    assert apart > 100 * TOLERANCE if block.mask == "arrow" else apart < 1e-5
