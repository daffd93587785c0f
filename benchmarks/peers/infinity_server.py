"""Run infinity's own command with one thread, and with a module back where its optimum engine looks for it.

optimum 1.27 is the last version that infinity 0.0.78 starts with. It imports names for the export of models from
`torch.onnx.symbolic_opset14`, and torch has moved them since. Nothing is exported here.
"""

import sys
from importlib import import_module

from benchmarks.peers.onnx_threads import confine
from torch.onnx._internal.torchscript_exporter import symbolic_opset14

confine(1)
sys.modules["torch.onnx.symbolic_opset14"] = symbolic_opset14

sys.exit(import_module("infinity_emb.cli").cli())
