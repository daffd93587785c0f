"""The precision that a run computes in: what was asked for, if the device has it, or what suits the device."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from polyrank.model import processor
from polyrank.model.errors import InvalidInput
from polyrank.model.training.precision import precision_on

CPU = torch.device("cpu")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """What the kernel tells of the processor."""
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
    processor.cpuinfo.cache_clear()
    yield tmp_path / "cpuinfo"
    processor.cpuinfo.cache_clear()


@pytest.mark.parametrize(("flags", "precision"), [
    ("flags : avx2 avx512_vnni avx512_bf16", "bf16"),
    ("flags : avx512_vnni amx_tile amx_bf16", "bf16"), ("flags : avx2 avx512f avx512_vnni", "no"),
    ("flags : avx2 avx_vnni", "no"), ("Features : asimd bf16", "no"), (None, "no"),
])  # fmt: skip
def test_auto_takes_bf16_where_the_processor_multiplies_it(told: Path, flags: str | None, precision: str) -> None:
    if flags is not None:
        told.write_text(flags)
    assert precision_on(CPU, "auto") == precision


@pytest.mark.parametrize(("native", "precision"), [(True, "bf16"), (False, "no")])
def test_auto_asks_a_gpu(monkeypatch: pytest.MonkeyPatch, native: bool, precision: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native and not including_emulation)
    assert precision_on(torch.device("cuda"), "auto") == precision


def test_fp16_is_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert precision_on(torch.device("cuda"), "fp16") == "fp16"
    with pytest.raises(InvalidInput, match="precision fp16 is for GPUs; on a processor give auto, no or bf16"):
        precision_on(CPU, "fp16")


def test_bf16_that_is_slow_is_told(told: Path, caplog: pytest.LogCaptureFixture) -> None:
    told.write_text("flags : avx512_vnni")
    assert precision_on(CPU, "bf16") == "bf16"
    assert caplog.messages == [
        "this machine has no instructions for bf16: it is slower than float32; give --precision auto"
    ]
    processor.cpuinfo.cache_clear()
    told.write_text("flags : avx512_bf16")
    assert [precision_on(CPU, asked) for asked in ("bf16", "no")] == ["bf16", "no"]
    assert len(caplog.messages) == 1
