"""Compile the kernels for GPUs that need not be there; prints what each takes, one JSON object a line."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from polyrank.model.search.scan import kernels
from polyrank.model.search.scan.gpu import tiles_for

NUMBERS = dict.fromkeys(("n", "padded", "contexts", "most"), "i32")
SINGLES = dict.fromkeys(("units", "scores", "maxima", "best", "margins", "values"), "*fp32")
# As they are served: code vectors of a context, contexts, and the type of the matrix.
SCANS = [tiles_for(m, contexts, torch.float16) for m in (1, 64, 360) for contexts in (1, 2)]
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"


def compile_for(capability: int, kernel: Any, types: dict[str, str], constants: dict[str, Any], **options: int) -> Any:
    types = {**NUMBERS, **SINGLES, "counts": "*i32", "ks": "*i32", "allowed": "*i1", "slots": "*i64", **types}
    types["late_weights"] = "*fp64"
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if signature[name].startswith("*")}
    source = ASTSource(kernel, signature, values, aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def stack_of(binary: bytes) -> int:
    """Bytes of a thread's memory that registers were spilled to."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        told = subprocess.run([TOOLS / "cuobjdump", "--dump-resource-usage", file.name], capture_output=True, text=True)
    return int(re.findall(r"STACK:(\d+)", told.stdout + told.stderr)[-1])


def tell(kernel: str, tiles: str, capability: int, compiled: Any) -> None:
    shared, stack = compiled.metadata.shared, stack_of(compiled.asm["cubin"])
    told = {"kernel": kernel, "tiles": tiles, "capability": capability, "shared": shared, "stack": stack}
    sys.stdout.write(json.dumps(told) + "\n")


def main() -> None:
    for capability, added in ((80, False), (80, True), (90, False), (90, True)):
        halves = [(each, "*fp16") for each in dict.fromkeys(SCANS)]
        for tiles, stored in [*halves, (tiles_for(64, 1, torch.float32), "*fp32")]:
            sizes = {"ROWS": tiles.rows, "CODES": tiles.codes, "DIMS": tiles.dims, "PACK": tiles.contexts}
            options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
            constants = {"D": 384, "MASKED": False, "ADDED": added, **sizes}
            types = {"matrix": stored, "codes": stored}
            tell("scan", str(tiles), capability, compile_for(capability, kernels.scan, types, constants, **options))
        constants = {"D": 384, "ROWS": 128, "CODES": 16, "DIMS": 128, "ADDED": added}
        types = {"matrix": "*fp16", "codes": "*fp32"}
        tell("finalists", "", capability, compile_for(capability, kernels.finalists, types, constants))


if __name__ == "__main__":
    main()
