"""What quantising takes: a machine that can, and examples in two parts. Importing this needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np

from polyrank.model.errors import InvalidInput
from polyrank.model.inference import openvino_backend
from polyrank.model.inference.runners import INT8
from polyrank.model.text.conversations import DRAWN, ReplyDraw
from polyrank.model.text.dialogues import Dialogue

CALIBRATED_ON = 300  # conversations, one example of each


def require_equipped() -> None:
    """Raise InvalidInput where calibration lacks a package, or where nothing computes in int8 to prove it."""
    missing = [name for name in ("openvino", "nncf") if find_spec(name) is None]
    if missing:
        raise InvalidInput(f"polyrank quantise needs {' and '.join(missing)}: pip install 'polyrank[quantise]'")
    with openvino_backend.translated():
        if not openvino_backend.is_supported(INT8):
            raise InvalidInput("this processor does not compute in int8; run polyrank quantise on one with VNNI")


@dataclass(frozen=True, slots=True)
class Split:
    """Examples to calibrate on, and lists of other conversations to prove it on."""

    calibration: Sequence[Dialogue]
    lists: Sequence[Dialogue]


def split(files: Sequence[Sequence[Dialogue]], lists: int, seed: int) -> Split:
    """Divide the examples of several files by conversations, which are drawn from all files together.

    Every example names its conversation. Those without candidates are given some, drawn from their file's replies.

    Raises InvalidInput where there are too few.
    """
    draws = [ReplyDraw(examples, DRAWN, seed) for examples in files]
    places: dict[tuple[int, str], list[int]] = {}
    for at, examples in enumerate(files):
        for number, example in enumerate(examples):
            places.setdefault((at, example.dialogue), []).append(number)
    rng, conversations = np.random.default_rng(seed), list(places)
    order = [conversations[at] for at in rng.permutation(len(conversations)).tolist()]
    calibration = [files[each[0]][places[each][int(rng.integers(len(places[each])))]] for each in order[:CALIBRATED_ON]]
    dialogues: list[Dialogue] = []
    for at, name in order[CALIBRATED_ON:]:
        listed = (draws[at].candidates(number, files[at][number]) for number in places[at, name])
        dialogues += [replace(each, dialogue=f"{at} {name}") for each in listed if each.candidates]
        if len(dialogues) >= lists:
            return Split(calibration, dialogues[:lists])
    have = f"{len(order)} conversations, of which {len(calibration)} are to calibrate on, leave {len(dialogues)} lists"
    raise InvalidInput(f"{have} for the proof, not {lists}; give more data, or fewer --lists")
