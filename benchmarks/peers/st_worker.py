"""sentence-transformers' side: `SentenceTransformer.encode` or `CrossEncoder.predict`, called as users do.

    python -m benchmarks.peers.st_worker encode|rerank --variant torch --models DIR --threads N

Runs in one of the peers' environments. Models that must be converted are converted once, into DIR.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from benchmarks.peers.worker import answer
from sentence_transformers import CrossEncoder, SentenceTransformer

PACKAGES = (
    "sentence-transformers",
    "transformers",
    "torch",
    "openvino",
    "optimum-intel",
    "onnxruntime",
    "optimum-onnx",
)
ONNX = {"provider": "CPUExecutionProvider"}
O3 = "onnx/model_O3.onnx"
INT8 = "onnx/model_qint8_avx512_vnni.onnx"


def torch_default(kind: Any, source: Path, _converted: Path) -> Any:
    return kind(str(source), device="cpu")


def torch_bf16(kind: Any, source: Path, _converted: Path) -> Any:
    return kind(str(source), device="cpu", model_kwargs={"dtype": torch.bfloat16})


def openvino(kind: Any, source: Path, converted: Path, **options: Any) -> Any:
    if not (converted / "openvino").is_dir():
        kind(str(source), device="cpu", backend="openvino").save_pretrained(str(converted))
    return kind(str(converted), device="cpu", backend="openvino", model_kwargs={"ov_config": options})


def onnx(kind: Any, source: Path, converted: Path, file_name: str = "onnx/model.onnx") -> Any:
    if not (converted / "onnx").is_dir():
        kind(str(source), device="cpu", backend="onnx", model_kwargs=ONNX).save_pretrained(str(converted))
    if not (converted / file_name).is_file():
        convert_onnx(kind(str(converted), device="cpu", backend="onnx", model_kwargs=ONNX), converted, file_name)
    return kind(str(converted), device="cpu", backend="onnx", model_kwargs={**ONNX, "file_name": file_name})


def convert_onnx(loaded: Any, converted: Path, file_name: str) -> None:
    from sentence_transformers import export_dynamic_quantized_onnx_model, export_optimized_onnx_model

    if file_name == O3:
        export_optimized_onnx_model(loaded, "O3", str(converted))
    else:
        export_dynamic_quantized_onnx_model(loaded, "avx512_vnni", str(converted))


VARIANTS: dict[str, Callable[..., Any]] = {
    "torch": torch_default,
    "torch-bf16": torch_bf16,
    "openvino": openvino,
    "openvino-f16": partial(openvino, INFERENCE_PRECISION_HINT="f16"),
    "openvino-f32": partial(openvino, INFERENCE_PRECISION_HINT="f32"),
    "onnx": onnx,
    "onnx-O3": partial(onnx, file_name=O3),
    "onnx-int8": partial(onnx, file_name=INT8),
}


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", choices=("encode", "rerank"))
    parser.add_argument("--variant", choices=VARIANTS, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    encodes = arguments.work == "encode"
    kind: Any = partial(SentenceTransformer if encodes else CrossEncoder, trust_remote_code=False)
    name = "encoder" if encodes else "cross"
    source = arguments.models / name
    backend = arguments.variant.partition("-")[0]
    if backend == "onnx":
        from benchmarks.peers.onnx_threads import confine

        confine(arguments.threads)
    if arguments.work == "rerank" and not source.is_dir():
        torch.manual_seed(0)
        kind(str(arguments.models / "encoder"), num_labels=1, device="cpu").save_pretrained(str(source))
    loaded = VARIANTS[arguments.variant](kind, source, arguments.models / f"{name}-{backend}")
    about = {"versions": versions(), **precision_of(loaded)}
    if arguments.work == "encode":
        answer({"contexts": loaded.encode, "candidates": loaded.encode}, about)
    else:
        answer({"pairs": loaded.predict}, about)
    return 0


def precision_of(loaded: Any) -> dict[str, str]:
    """Return the precision of OpenVINO, whose default on processors with AMX is bfloat16."""
    if loaded.backend != "openvino":
        return {}
    inner = loaded[0].model if hasattr(loaded[0], "model") else loaded[0].auto_model
    inner.compile()
    compiled = inner.request if hasattr(inner.request, "get_property") else inner.request.get_compiled_model()
    return {"precision": str(compiled.get_property("INFERENCE_PRECISION_HINT"))}


if __name__ == "__main__":
    sys.exit(main())
