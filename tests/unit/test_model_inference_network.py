"""A network that is read when something first needs it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tiny import write_base

from polyrank.model.architectures.late import LateEncoder
from polyrank.model.checkpoint.read import begin_from_base
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.inference.network import CandidatePart, Network


@pytest.fixture
def encoder(tmp_path: Path) -> LateEncoder:
    config = ModelConfig(architecture="bi", base_name="", max_context_tokens=40, max_candidate_tokens=16)
    made, _ = begin_from_base(str(write_base(tmp_path / "base", 0)), config)
    assert isinstance(made, LateEncoder)
    return made.train()


def test_several_threads_read_it_once_and_only_where_they_need_it(encoder: LateEncoder) -> None:
    reads = []

    def read() -> LateEncoder:
        reads.append(threading.get_ident())
        time.sleep(0.05)
        return encoder

    network = Network(encoder.config, read, "a fingerprint")
    part = network.part(CandidatePart)
    assert (part.name, part.identity, reads) == ("CandidatePart", "a fingerprint", [])
    with ThreadPoolExecutor(4) as pool:
        found = [task.result() for task in [pool.submit(lambda: part.module().encoder) for _ in range(4)]]
    assert found == [encoder] * 4
    assert len(reads) == 1
    assert not any(module.training for module in encoder.modules())


def test_what_could_not_be_read_is_tried_again(encoder: LateEncoder) -> None:
    mended: list[LateEncoder] = []

    def read() -> LateEncoder:
        if not mended:
            raise CheckpointInvalid("damaged")
        return mended[0]

    network = Network(encoder.config, read)
    with pytest.raises(CheckpointInvalid):
        _ = network.encoder
    mended.append(encoder)
    assert network.encoder is encoder
