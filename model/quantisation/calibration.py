"""Calibration: NNCF watches a model's transformers read examples, and says how int8 holds what their linear maps read.

NNCF quantises the traced transformer for OpenVINO: per channel, with SmoothQuant (Xiao et al. 2023, arXiv 2211.10438).
Of what it makes only factors and ranges are taken. Attention's products stay float32: OpenVINO does not compute them in
int8, so rounding their inputs would cost accuracy and gain nothing.
"""

import contextlib
import io
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from polyrank.model.architectures.batching import Batch
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.pairs import PairEncoder
from polyrank.model.architectures.uni import UniEncoder
from polyrank.model.architectures.vector import VectorEncoder
from polyrank.model.checkpoint.quantised import Inputs, MapInput
from polyrank.model.inference import int8
from polyrank.model.inference.openvino_backend import translated
from polyrank.model.inference.parts import BesidePart, CandidatePart, ContextPart, KnownPart, NetworkPart, PairPart
from polyrank.model.inference.tracing import traced
from polyrank.model.rankers.networks import CrossRanker, NetworkRanker
from polyrank.model.text.dialogues import Dialogue

if TYPE_CHECKING:
    import openvino as ov

_ATTENTION = "ScaledDotProductAttention"
_SMOOTHED = "nncf_smooth_quant"  # the end of the name of NNCF's factors
_LEAST_FACTOR = 1e-4  # float16 holds it, and its inverse
_UNKNOWN_USE = "NNCF_CI"  # NNCF tells its makers how it is used, unless this variable is set


def calibrated(
    ranker: NetworkRanker, examples: Sequence[Dialogue], report: Callable[[str, int, int], None]
) -> dict[str, Inputs]:
    """Calibrate all parts of a model, which torch runs, on examples; returns what was found by the part's name.

    The stage reported is "calibration".

    Raises InvalidInput where NNCF or OpenVINO cannot do it.
    """
    found = dict[str, Inputs]()
    parts = list(parts_of(ranker))
    for done, part in enumerate(parts):
        report("calibration", done, len(parts))
        with translated("NNCF cannot calibrate this model"):
            found[part.reads] = _inputs(part, list(_readings(part, ranker, examples)))
    report("calibration", len(parts), len(parts))
    return found


def parts_of(ranker: NetworkRanker) -> Iterator[NetworkPart]:
    """Yield the parts that run where the model serves: a residual encoder of pairs has its first stage's, too."""
    encoder: PairEncoder | VectorEncoder = ranker.encoder
    late = encoder if isinstance(encoder, VectorEncoder) else encoder.poly
    if isinstance(encoder, CrossEncoder):
        yield PairPart(encoder)
    if isinstance(encoder, UniEncoder):
        yield KnownPart(encoder)
        yield BesidePart(encoder)
    if late is not None:
        yield ContextPart(late)
        yield CandidatePart(late)


def _readings(part: NetworkPart, ranker: NetworkRanker, examples: Sequence[Dialogue]) -> Iterator[Callable[[], Batch]]:
    """Yield what lays out each sequence that a part reads of the examples.

    One at a time, because padding would be watched, too; and each when it is read, because what a Uni-Encoder's
    candidates know of their contexts takes megabytes each.
    """
    pad_id = part.backbone().pad_id
    for example, other in zip(examples, [*examples[1:], examples[0]], strict=True):
        if isinstance(ranker, CrossRanker):
            pairs, _ = ranker.tokenize_pairs(example.conversation, [example.response, other.response])
            (context,), own = pairs.contexts, pairs.candidates[:1]
            joint = [[*context, *candidate[pairs.prefix :]] for candidate in pairs.candidates]
        else:
            joint = []
            context, _ = ranker.tokenize_context(example.conversation)
            own, _ = ranker.tokenize_candidates([example.response])
        if isinstance(part, ContextPart):
            yield partial(part.encoder.context_batch, part.encoder.config, [context], pad_id)
        elif isinstance(part, CandidatePart):
            yield partial(part.encoder.candidate_batch, part.encoder.config, own, pad_id)
        elif isinstance(part, KnownPart):
            yield partial(part.laid_out, [context])
        else:
            yield from (partial(part.laid_out, [sequence], [len(context)]) for sequence in joint)


def _inputs(part: NetworkPart, readings: Sequence[Callable[[], Batch]]) -> dict[str, MapInput]:
    """Let NNCF quantise a part's transformer; returns what it found of its linear maps, by name."""
    os.environ.setdefault(_UNKNOWN_USE, "1")
    import nncf

    logging.getLogger("nncf").setLevel(logging.ERROR)
    transformer, _ = traced(part)
    with contextlib.redirect_stdout(io.StringIO()):  # its bars
        quantised = nncf.quantize(
            transformer.clone(),
            nncf.Dataset(readings, lambda read: [np.asarray(field) for field in read()]),
            subset_size=len(readings),
            model_type=nncf.ModelType.TRANSFORMER,
            preset=nncf.QuantizationPreset.MIXED,
            ignored_scope=nncf.IgnoredScope(types=[_ATTENTION], validate=False),
            # It would change biases, which the file then had to hold; it gained nothing.
            advanced_parameters=nncf.AdvancedQuantizationParameters(disable_bias_correction=True),
        )
    return dict(_found(transformer, quantised))


def _found(transformer: "ov.Model", quantised: "ov.Model") -> Iterator[tuple[str, MapInput]]:
    """Yield what NNCF put before each linear map that it quantised: factors of the components, then rounding."""
    nodes = {node.get_friendly_name(): node for node in quantised.get_ops()}
    for name, products in int8.linear_maps(transformer):
        rounding = nodes[products[0].get_friendly_name()].input_value(0).get_node()
        if rounding.get_type_name() != "FakeQuantize":
            continue
        low, high = (float(rounding.input_value(at).get_node().data.item()) for at in (1, 2))
        before = rounding.input_value(0).get_node()
        if before.get_friendly_name().endswith(_SMOOTHED):
            factors = before.input_value(1).get_node().data.ravel()
        else:
            factors = np.ones(int8.width_of(products[0]), np.float32)
        yield name, MapInput(np.clip(factors, _LEAST_FACTOR, 1 / _LEAST_FACTOR).astype(np.float16), low, high)
