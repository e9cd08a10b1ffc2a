"""File names of `estimate-train-time`, and the operator and role that each function measures."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators.attention import WITHOUT_MASK


@dataclass(frozen=True, slots=True)
class Function:
    """The operator, role and variant that a function measures, and the raw parameters in its file other than tp."""

    operator: str
    role: str
    parameters: tuple[str, ...]
    variant: str = ""


# At both sites the forward pass does twice the causal FLOPs: 237 TFLOP/s at most on an A100, 396 on a GH200.
_VARIANTS = {"flash_atten": WITHOUT_MASK}

FUNCTIONS: Mapping[str, Function] = {
    name: Function(operator, role, tuple(parameters.split()), _VARIANTS.get(name, ""))
    for name, operator, role, parameters in (
        ("embedding", "embedding", "", "b l d"),
        ("layernorm", "layer_norm", "", "b l d"),
        ("RMSlayernorm", "rms_norm", "", "b l d"),
        ("linear1", "gemm", "qkv", "b l d"),
        ("RoPE", "rope", "", "b l h d"),
        ("baddbmm", "batched_gemm", "attention_scores", "b l h d"),
        ("fillmask", "causal_mask_fill", "", "b l h"),
        ("softmax", "softmax", "", "b l h"),
        ("ScaledUpperTriangMaskedSoftmax", "fused_causal_softmax", "", "b l h"),
        ("bmm", "batched_gemm", "attention_values", "b l h d"),
        ("flash_atten", "flash_attention", "", "b l h d"),
        ("linear2", "gemm", "attention_output", "b l d"),
        ("linear3", "gemm", "mlp_up", "b l d"),
        ("gelu", "gelu", "", "b l d"),
        ("linear4", "gemm", "mlp_down", "b l d"),
        ("res_add", "residual_add", "", "b l d"),
        ("linear_final", "gemm", "logits", "b l d"),
        ("parallel_cross_entropy_128", "cross_entropy", "", "b l"),
        ("firstStage_optimizer", "adam", "first_stage", "d layers"),
        ("middleStage_optimizer", "adam", "middle_stage", "d layers"),
        ("lastStage_optimizer", "adam", "last_stage", "d layers"),
    )
}
COLLECTIVES: Mapping[str, Function] = {
    "allreduce": Function("all_reduce", "tensor", ()),
    "allreduce_large": Function("all_reduce", "data", ()),
    "allgather_large": Function("all_gather", "data", ()),
    "p2p": Function("point_to_point", "pipeline", ()),
}
OLDER_FORMAT = "optimizer"
DTYPES: Mapping[str, str] = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}

_FILE_NAME = re.compile(
    r"(?P<gpu>[^_]+)_(?P<function>\w+?)_(?P<precision>[a-z]+\d+)(?:_(?P<nodes>\d+)_(?P<gpus>\d+))?\.csv",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A measurement file by its name; `layout` is (nodes, GPUs per node), or None."""

    path: Path
    gpu: str
    function: str
    precision: str
    layout: tuple[int, int] | None

    @classmethod
    def named(cls, path: Path) -> "DataFile | None":
        """The parts of the file's name, or None if it is not a measurement file."""
        match = _FILE_NAME.fullmatch(path.name)
        if match is None or match["precision"] not in DTYPES:
            return None
        layout = (int(match["nodes"]), int(match["gpus"])) if match["nodes"] else None
        return cls(
            path=path,
            gpu=match["gpu"],
            function=match["function"],
            precision=match["precision"],
            layout=layout,
        )


def data_files(directory: Path) -> list[DataFile]:
    """Measurement files of a site's folder, first the files with a layout, whose rows the others repeat.

    Raises:
        DataError: no such folder, or no measurement file in it.
    """
    if not directory.is_dir():
        found = "is not a folder" if directory.exists() else "no such folder"
        raise DataError(f"{directory}: {found}; expected one with operator/ and nccl/ in it")
    paths = sorted(path for part in ("operator", "nccl") for path in directory.glob(f"{part}/*.csv"))
    files = [file for file in map(DataFile.named, paths) if file is not None]
    if not files:
        raise DataError(f"{directory}: holds no operator/GPU_FUNCTION_fp16.csv and no nccl/ file like it")
    return sorted(files, key=lambda file: (file.layout is None, file.path))
