"""ONNX Runtime, imported when it is first needed, and kept from reporting to its maker."""

import os
from typing import Any


def onnx_runtime() -> Any:
    """The module `onnxruntime`; importing it takes a quarter of a second.

    Since version 1.29 it sends telemetry from Linux too, and leaves an identifier in the user's home
    (microsoft/onnxruntime pull request 27379). It is told not to before it is imported, which is when it decides; a
    user who sets the variable decides.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    from kernelcast.runtime.terminations import interrupts_held

    with (
        interrupts_held()
    ):  # its compiled module drops exceptions that are raised while it initialises itself
        import onnxruntime

    return onnxruntime


def open_session(model: bytes) -> Any:
    """A session of a model, on one thread; any error is ONNX Runtime's."""
    onnxruntime = onnx_runtime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
