"""Which scan a pool gets."""

import logging

import numpy as np
import pytest

import model.scan
from model.scan import Query, prepare
from model.topk import top_k


def test_what_a_gpu_cannot_scan_the_cpu_does_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError("768 bytes are needed on the GPU, and 5 are free")

    monkeypatch.setattr(model.scan, "GpuScan", refuse)
    rng = np.random.default_rng(0)
    matrix, codes = rng.normal(size=(50, 8)).astype(np.float16), rng.normal(size=(3, 8)).astype(np.float32)
    with caplog.at_level(logging.WARNING):
        [found] = prepare(matrix, "cuda").top_k([Query(codes, 5)])
    assert found.rows.tolist() == top_k(matrix, codes, 5).rows.tolist()
    [record] = caplog.records
    assert record.getMessage() == "the pool is not scanned on the GPU"
    assert record.__dict__["fields"] == {"why": "768 bytes are needed on the GPU, and 5 are free"}
