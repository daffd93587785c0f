"""Give ONNX Runtime as many threads as the other sides have.

By default it makes a thread for each core of the machine and binds it there, even if the process may use fewer cores.
"""

from typing import Any

import onnxruntime


def confine(threads: int) -> None:
    """Limit every session made from now on; call this before anything imports the class InferenceSession."""

    class Confined(onnxruntime.InferenceSession):  # type: ignore[misc]  # onnxruntime has no types
        def __init__(self, model: Any, sess_options: Any = None, *arguments: Any, **named: Any) -> None:
            options = sess_options or onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            super().__init__(model, options, *arguments, **named)

    onnxruntime.InferenceSession = Confined
