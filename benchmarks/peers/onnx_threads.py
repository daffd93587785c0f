"""ONNX Runtime with as many threads as the others have.

Left to itself it makes one for each core of the machine and binds it there, even where the process was bound to fewer.
"""

from typing import Any

import onnxruntime


def confine(threads: int) -> None:
    """Give every session made from now on so many; to be called before anything imports the class of sessions."""

    class Confined(onnxruntime.InferenceSession):
        def __init__(self, model: Any, sess_options: Any = None, *arguments: Any, **named: Any) -> None:
            options = sess_options or onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            super().__init__(model, options, *arguments, **named)

    onnxruntime.InferenceSession = Confined
