"""The environment of all tests in this folder, and made-up conversations."""

import os
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
import zstandard

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported: no test may ask the network for a model
os.environ |= {"POLYRANK_BACKEND": "torch", "POLYRANK_PRECISION": "float32"}  # no process measures others first

from accelerate.state import AcceleratorState
from benchmarks import systems


@pytest.fixture(autouse=True)
def own_precision() -> Iterator[None]:
    """Forget the precision of another test's training, which holds for the whole process."""
    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder of the sets that systems are trained and compared on, each with a few examples."""
    folder = tmp_path / "data"
    examples = [{"context": [f"w{n} w{n % 7}"], "response": f"w{n % 13} w1"} for n in range(60)]
    lists = [{"context": [f"w{n}"], "response": f"w{n % 9}", "candidates": [f"w{n % 9}", "w20"]} for n in range(12)]
    sets = dict.fromkeys(systems.TRAIN, examples) | dict.fromkeys(systems.YARDSTICKS.values(), lists)
    for name, rows in sets.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(zstandard.compress(b"".join(orjson.dumps(row) + b"\n" for row in rows)))
    return folder
