"""The names of the back-ends, for those who must not wait for torch."""

from typing import Literal, get_args

BackendName = Literal["auto", "torch", "openvino", "openvino-fp16", "openvino-bf16", "openvino-int8"]
BACKENDS: tuple[BackendName, ...] = get_args(BackendName)
AUTO, TORCH = "auto", "torch"
