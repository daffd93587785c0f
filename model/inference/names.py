"""The names of the back-ends, in a module that imports without torch."""

from typing import Literal, get_args

BackendName = Literal["auto", "torch", "openvino", "openvino-fp16", "openvino-bf16", "openvino-int8"]
BACKENDS: tuple[BackendName, ...] = get_args(BackendName)
AUTO, TORCH = "auto", "torch"
