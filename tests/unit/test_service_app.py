"""What keeps an app from being made."""

from pathlib import Path

import pytest

from polyrank.model.inference import openvino_backend
from polyrank.service.app import create_app
from polyrank.service.errors import SettingsError
from polyrank.service.settings import Settings


def test_a_back_end_that_cannot_run_here_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_backend, "_capabilities", lambda: ["FP32"])
    with pytest.raises(
        SettingsError, match=r"^backend: this processor does not compute in float16; use another precision, or auto$"
    ):
        create_app(Settings(store=Path("nowhere"), backend="openvino", precision="float16"))
