"""OpenVINO on CPUs: torch traces a part (tracing.py), and OpenVINO compiles it for a precision.

Importing this needs no torch: what was compiled before is taken up without it.

A part is compiled in two pieces, because the precision is that of its transformer alone. Code attention in bfloat16
took the worst context vector of chat-poly from a cosine of 0.9999 to one of 0.9991. The ending is always float32.

OpenVINO's threads are TBB's. Unlike torch's, they sleep while there is nothing to do.
"""

import importlib.util
import platform
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model import openvino_core, processor, threads
from polyrank.model.architectures.batching import TOKEN_BUDGET, Batch
from polyrank.model.checkpoint.quantised import Quantisation
from polyrank.model.errors import InvalidInput
from polyrank.model.inference import trials
from polyrank.model.inference.int8 import linear_maps, quantised
from polyrank.model.inference.network import Forward, Sizes
from polyrank.model.inference.runners import BFLOAT16, FLOAT16, FLOAT32, INT8, OPENVINO, Runner
from polyrank.model.inference.torch_backend import TorchBackend

if TYPE_CHECKING:
    import openvino as ov

    from polyrank.model.inference.parts import NetworkPart


class _Format(NamedTuple):
    """The number format of products.

    hint: OpenVINO's name of it; for int8 that of float32, in which attention and all else then stay. needs: what the
    processor must offer; empty: nothing. width_step: sequences are padded to a multiple of it. Products in 16 bits sum
    over tokens in blocks of 16; with whole blocks a sequence has the same output in every batch, because a block of
    padding adds nothing. Beside int8 attention needs whole blocks, too: what it rounds otherwise can become another
    byte. In float32 a step keeps the number of shapes small: 4 was as fast as 1, and a sixth faster than 16 for a pool.
    """

    hint: str
    needs: str = ""
    width_step: int = 4


_FORMATS = {
    FLOAT32: _Format("f32"),
    FLOAT16: _Format("f16", needs="FP16", width_step=16),
    BFLOAT16: _Format("bf16", needs="BF16", width_step=16),
    INT8: _Format("f32", needs="INT8", width_step=16),
}


def is_installed() -> bool:
    """Return whether the package is there."""
    return importlib.util.find_spec("openvino") is not None


def is_supported(precision: str) -> bool:
    """Whether OpenVINO is there and computes in that precision on this processor."""
    needs = _FORMATS[precision].needs
    return is_installed() and (not needs or needs in _capabilities()) and (precision != INT8 or _sums_bytes_right())


def _sums_bytes_right() -> bool:
    """Whether products of bytes are summed in 32 bits; x86 without VNNI adds two of them in 16 bits, which overflow."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return not is_x86 or processor.has("avx512_vnni") or processor.has("avx_vnni")


class OpenVinoBackend:
    """Compiles parts for the CPU, with as many threads as `polyrank.model.threads` tells at that moment."""

    token_budget = TOKEN_BUDGET

    def __init__(self, precision: str, quantisation: Quantisation | None = None) -> None:
        """Raise InvalidInput where the package or the processor lacks what the precision needs.

        quantisation: what calibration found, for int8; other precisions do without.
        """
        self.runner, self._quantisation = Runner(OPENVINO, precision), quantisation
        if not is_installed():
            need = f"the back-end {self.runner.backend} needs the package openvino"
            raise InvalidInput(f"{need}: pip install openvino, or use torch")
        with translated():
            if not is_supported(precision):
                raise InvalidInput(f"this processor does not compute in {precision}; use another precision, or auto")

    def compile(self, part: "NetworkPart") -> Forward:
        """Trace the part, compile it and try it; raises InvalidInput where OpenVINO cannot run it."""
        with translated():
            forward = compiled(part, self.runner.precision, self._quantisation)
            if not self._is_right(forward, part):
                what = f"the numbers of {' in '.join(self.runner)} are wrong for this model"
                raise InvalidInput(f"{what}; use the back-end torch")
        return forward

    def _is_right(self, forward: Forward, part: "NetworkPart") -> bool:
        """In float32 the outputs must be torch's; in other formats they must be finite."""
        if self.runner.precision != FLOAT32:
            return all(np.isfinite(output).all() for batch in trials.extreme(part) for output in forward(batch))
        reference = TorchBackend().compile(part)
        return trials.agree(forward, reference, [*trials.usual(part, on_gpu=False), *trials.extreme(part)])


@contextmanager
def translated(what: str = "OpenVINO cannot run this model here, use the back-end torch") -> Iterator[None]:
    """Turn any error of tracing or OpenVINO into an InvalidInput of one line, which says what cannot be done."""
    try:
        yield
    except InvalidInput:
        raise
    except Exception as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise InvalidInput(f"{what}: {why}") from error


def compiled(part: "NetworkPart", precision: str, quantisation: Quantisation | None = None) -> Forward:
    """Compile a part in that precision; it shares its weights with torch. Errors come as they are."""
    from polyrank.model.inference.tracing import traced

    transformer, ending = traced(part)
    if precision == INT8:
        if quantisation is None:
            raise InvalidInput("the model is not quantised, so it has no int8; run polyrank quantise first")
        inputs = quantisation.parts.get(part.reads, {})
        if not inputs and any(linear_maps(transformer)):
            raise InvalidInput(f"the calibration for int8 knows nothing of {part.reads}; run polyrank quantise again")
        transformer = quantised(transformer, inputs)
    models = [
        openvino_core.core().compile_model(model, "CPU", _properties(each))
        for model, each in zip((transformer, ending), _precisions(precision), strict=True)
    ]
    return _Compiled(models, Sizes.of(part.backbone()), precision)


def exported(forward: Forward) -> list[memoryview] | None:
    """Return the models of a compiled part as bytes, for `imported`; None if torch runs it."""
    return [model.export_model().getbuffer() for model in forward.models] if isinstance(forward, _Compiled) else None


def imported(pieces: Sequence[memoryview], sizes: Sizes, precision: str) -> Forward:
    """Make a part ready to run from what was exported; the weights stay where the pieces lie."""
    with translated():
        core = openvino_core.core()
        import openvino as ov

        models = [
            core.import_model(ov.Tensor(np.frombuffer(piece, np.uint8), shared_memory=True), "CPU", _properties(each))
            for piece, each in zip(pieces, _precisions(precision), strict=True)
        ]
        return _Compiled(models, sizes, precision, pieces)


def _precisions(precision: str) -> tuple[str, str]:
    return precision, FLOAT32


def _properties(precision: str) -> dict[str, Any]:
    return {"PERFORMANCE_HINT": "LATENCY", **openvino_core.properties(threads.count(), _FORMATS[precision].hint)}


class _Compiled:
    """A compiled part. It runs one request at a time, because there is one stream."""

    def __init__(
        self, models: Sequence["ov.CompiledModel"], sizes: Sizes, precision: str, memory: Sequence[memoryview] = ()
    ) -> None:
        """`models` are its transformer and its ending; `memory` is where their weights lie, if OpenVINO has no copy."""
        self.models = models
        self._transformer, self._ending = (model.create_infer_request() for model in models)
        self._takes_mask = len(models[1].inputs) > 1  # tracing drops an input that is not read
        self._sizes, self._width_step = sizes, _FORMATS[precision].width_step
        self._memory = memory
        self._lock = threading.Lock()

    def __call__(self, batch: Batch) -> tuple[NDArray[Any], ...]:
        inputs = self._widened(batch)
        with self._lock:
            (states,) = self._transformer.infer(inputs, share_inputs=True, share_outputs=True).to_tuple()
            ending_inputs = [states, inputs[1]] if self._takes_mask else [states]
            outputs = self._ending.infer(ending_inputs, share_inputs=True, share_outputs=True)
            return tuple(output.copy() for output in outputs.to_tuple())

    def _widened(self, batch: Batch) -> list[NDArray[Any]]:
        """Pad to a multiple of the width step, but not beyond the longest sequence that the model takes."""
        fields = list[NDArray[Any]]()
        for number, field in enumerate(batch):
            width = field.shape[1]
            more = min(-width % self._width_step, max(0, self._sizes.max_tokens - width))
            around = [(0, 0), (0, more), *[(0, 0)] * (field.ndim - 2)]
            fields.append(np.pad(field, around, constant_values=0 if number else self._sizes.pad_id))
        return fields


def _capabilities() -> list[str]:
    return list(openvino_core.core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
