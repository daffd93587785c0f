"""What the numbers among the settings of a training run may be, by name; imports nothing that takes time."""

from collections.abc import Mapping

from polyrank.model.bounds import WIDEST, Bounds
from polyrank.model.config import MOST_ROWS

_STEPS, _RATE, _SCALE = Bounds(1, 1_000_000_000), Bounds(1e-30, 1e30), Bounds(1e-9, 1e6)

BOUNDS: Mapping[str, Bounds] = {
    "steps": _STEPS,
    "epochs": Bounds(0.0001, 1e6),
    "batch_size": Bounds(1, 1_000_000),
    "batch_tokens": Bounds(0, 1_000_000_000),
    "accumulate": Bounds(1, 1_000_000),
    "negatives": Bounds(0, 100_000),
    "extra_replies": Bounds(0, 1_000_000),
    "learning_rate": _RATE,
    "code_learning_rate": _RATE,
    "weight_decay": Bounds(0.0, 1000.0),
    "beta2": Bounds(1e-6, 0.999999),
    "warmup_steps": Bounds(0, 1_000_000_000),
    "looks": Bounds(0.0001, 1e6),
    "patience": Bounds(0, 1_000_000),
    "lora_rank": Bounds(0, WIDEST),
    "dropout": Bounds(0.0, 0.999),
    "mask_share": Bounds(0.001, 0.999),
    "chunk_tokens": Bounds(1, 1_000_000_000),
    "seed": Bounds(0, 2**63 - 1),
    "n_codes": Bounds(1, WIDEST),
    "reduction_m": Bounds(1, WIDEST),
    "rows": Bounds(1, MOST_ROWS),
    "upper_layers": Bounds(1, 1000),
    "code_scale": _SCALE,
    "score_scale": _SCALE,
    "max_context_tokens": Bounds(8, 1_000_000),
    "max_candidate_tokens": Bounds(8, 1_000_000),
    "max_turns": Bounds(1, 1_000_000),
    "teacher_weight": Bounds(0.0, 1.0),
    "teacher_temperature": Bounds(1e-6, 1e6),
    "first_weight": Bounds(0.0, 1e6),
    "inner_weight": Bounds(0.0, 1e6),
}
