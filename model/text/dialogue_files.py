"""Write dialogues as `polyrank.model.text.dialogues` reads them: a file that is complete or not there at all."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from polyrank.model.durable import replacing
from polyrank.model.text.dialogues import Dialogue, DialoguesInvalid
from polyrank.model.text.jsonlines import COMPRESSIONS

_BUFFER_BYTES = 1 << 16


@contextmanager
def new_dialogues(path: Path) -> Iterator[Callable[[Dialogue], None]]:
    """Give a function that adds an example to a file, which appears when the `with` block ends.

    A block that ends in an exception leaves what was there before. Equal examples give equal bytes.

    Args:
        path: `.jsonl`, `.jsonl.gz` or `.jsonl.zst`; a file of that name is replaced.

    Raises:
        DialoguesInvalid: the name is of an unknown kind.
        OSError: the directory is missing, full or may not be written.
    """
    suffix = next((suffix for suffix in COMPRESSIONS if path.name.lower().endswith(suffix)), None)
    if suffix is None:
        raise DialoguesInvalid(f"{path}: unknown kind of file; use one of {', '.join(COMPRESSIONS)}")
    compression: Any = COMPRESSIONS[suffix]  # None leaves a file as it is, which pyarrow's stubs do not know
    with (
        replacing(path) as temporary,
        pa.output_stream(str(temporary), compression, _BUFFER_BYTES) as stream,
    ):

        def write(dialogue: Dialogue) -> None:
            stream.write(_line(dialogue))

        yield write


def _line(dialogue: Dialogue) -> bytes:
    row: dict[str, object] = {"context": [turn.text for turn in dialogue.conversation.turns]}
    if dialogue.conversation.persona:
        row["persona"] = dialogue.conversation.persona
    row["response"] = dialogue.response
    if dialogue.candidates:
        row |= {"candidates": dialogue.candidates, "label": dialogue.label}
    row |= {"negatives": dialogue.negatives, "dialogue": dialogue.dialogue}
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
