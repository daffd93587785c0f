"""`quantise`: calibrate a checkpoint for int8, prove what that changes, and write both into it.

The proof is how int8 ranks lists that calibration has not seen, beside float32.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyrank.model.checkpoint.card import CARD_FILE, with_quantisation
from polyrank.model.checkpoint.files import CONFIG_FILE, read_config, write_config
from polyrank.model.checkpoint.quantised import QUANTISED_FILE, quantisation_bytes, read_quantisation
from polyrank.model.config import QuantisationConfig
from polyrank.model.durable import write_atomically
from polyrank.model.evaluation.rankings import RankedLists, rank_lists
from polyrank.model.inference.runners import FLOAT32, INT8, OPENVINO, TORCH
from polyrank.model.inference.trials import cosines
from polyrank.model.inputs import read_input
from polyrank.model.measures import group_numbers, intervals, rank_values
from polyrank.model.quantisation.calibration import calibrated
from polyrank.model.quantisation.needs import Split
from polyrank.model.rankers.networks import NetworkRanker, VectorRanker, load_network
from polyrank.model.text.dialogues import Dialogue

Report = Callable[[str, int, int], None]
_DIGITS = 6
_AT_ONCE = 256  # lists whose vectors are compared; 3,000 contexts of 64 codes have 0.6 GB from BERT-base
_KEPT = "surrogateescape"  # what is no UTF-8 in a card stays as it is


def quantise(checkpoint: Path, examples: Split, report: Report) -> QuantisationConfig:
    """Calibrate a checkpoint for int8, compare it with float32, and write what was found and its proof into it.

    Nothing is written before the end. An int8 that loses too much is written, too: `auto` does not take it. Raises
    InvalidInput if NNCF or OpenVINO cannot do it here.
    """
    ranker = load_network(checkpoint, "cpu", TORCH, FLOAT32)
    content = quantisation_bytes(calibrated(ranker, examples.calibration, report))
    found = read_quantisation(content)
    ours = load_network(checkpoint, "cpu", OPENVINO, INT8, quantisation=found)
    reference = load_network(checkpoint, "cpu", OPENVINO, FLOAT32)
    proved = proof(ours, reference, examples.lists, found.sha256, report)
    write_atomically(checkpoint / QUANTISED_FILE, content)
    config = replace(read_config(checkpoint / CONFIG_FILE), quantisation=proved)
    write_config(checkpoint / CONFIG_FILE, config)
    card = checkpoint / CARD_FILE
    if card.is_file():
        before = read_input(card).decode(errors=_KEPT)
        write_atomically(card, with_quantisation(before, proved).encode(errors=_KEPT))
    return proved


def proof(
    ours: NetworkRanker, reference: NetworkRanker, lists: Sequence[Dialogue], sha256: str, report: Report
) -> QuantisationConfig:
    """Rank the same lists in int8 and in float32, and compare; every list has candidates, and names its conversation.

    Intervals are of paired differences, over whole conversations. sha256: of what int8 was made from.
    """
    ranked = [rank_lists(ranker, lists, _named(report, name)) for ranker, name in ((ours, "int8"), (reference, "f32"))]
    values = [rank_values(each.ties) for each in ranked]
    groups = group_numbers(each.dialogue for each in lists)
    differences = np.column_stack([values[0][name] - values[1][name] for name in ("recall@1", "mrr")])
    low, high = intervals(differences, groups)
    recall, mrr = (
        tuple(round(float(each), _DIGITS) for each in ends)
        for ends in zip(differences.mean(axis=0), low, high, strict=True)
    )
    return QuantisationConfig(
        made_for=reference.fingerprint,
        sha256=sha256,
        lists=len(lists),
        conversations=int(groups.max()) + 1,
        recall_at_1=round(float(values[1]["recall@1"].mean()), _DIGITS),
        mrr=round(float(values[1]["mrr"].mean()), _DIGITS),
        recall_change=recall,
        mrr_change=mrr,
        nearness=_nearness(ours, reference, lists, ranked, report),
    )


def _named(report: Report, name: str) -> Report:
    return lambda stage, done, total: report(f"{name} {stage}", done, total)


def _nearness(
    ours: NetworkRanker,
    reference: NetworkRanker,
    lists: Sequence[Dialogue],
    ranked: Sequence[RankedLists],
    report: Report,
) -> dict[str, float]:
    """Compare the vectors of contexts and right replies, or the scores of pairs."""
    if isinstance(ours, VectorRanker) and isinstance(reference, VectorRanker):
        found = list[NDArray[np.float64]]()
        for start in range(0, len(lists), _AT_ONCE):
            report("comparing vectors", start, len(lists))
            some = lists[start : start + _AT_ONCE]
            found += [cosines(*both) for both in zip(_vectors(ours, some), _vectors(reference, some), strict=True)]
        alike = np.concatenate(found)
        return {"least cosine": _short(alike.min()), "mean cosine": _short(alike.mean())}
    one, other = (np.concatenate(each.scores) for each in ranked)
    return {"correlation": _short(np.corrcoef(one, other)[0, 1])}


def _vectors(ranker: VectorRanker, lists: Sequence[Dialogue]) -> Iterator[NDArray[np.float32]]:
    """Yield the first-stage vectors of contexts, (…, D), then those of replies."""
    contexts = [ranker.tokenize_context(each.conversation)[0] for each in lists]
    yield np.concatenate(ranker.encode_contexts(contexts))
    yield ranker.encode_candidates(ranker.tokenize_candidates([each.response for each in lists])[0])


def _short(value: float) -> float:
    return round(float(value), _DIGITS)
