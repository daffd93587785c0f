"""What calibration says where NNCF fails; what it finds: tests/integration/test_service_cli_quantise.py."""

from pathlib import Path

import pytest
from tiny import write_checkpoint

from polyrank.model.errors import InvalidInput
from polyrank.model.quantisation import calibration
from polyrank.model.rankers.networks import load_network
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue

pytest.importorskip("openvino")


def test_an_error_of_nncf_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("Exception from nncf:\n\nno such thing\n")

    monkeypatch.setattr(calibration, "_inputs", fail)
    ranker = load_network(write_checkpoint(tmp_path, "mine", seed=0, architecture="bi"), "cpu", "torch", "float32")
    with pytest.raises(InvalidInput, match=r"^NNCF cannot calibrate this model: no such thing$"):
        calibration.calibrated(ranker, [Dialogue(Conversation.of("w1"), "w2")], lambda *_: None)
