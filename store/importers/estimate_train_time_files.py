"""File names of `estimate-train-time`: which function, and so which operator here, a file holds (docs/importing.md)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from kernelcast.runtime.errors import DataError

FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "embedding": "embedding",
        "layernorm": "layer_norm",
        "RMSlayernorm": "rms_norm",
        "linear1": "qkv_linear",
        "RoPE": "rope",
        "baddbmm": "attention_scores",
        "fillmask": "causal_mask_fill",
        "softmax": "softmax",
        "ScaledUpperTriangMaskedSoftmax": "fused_causal_softmax",
        "bmm": "attention_values",
        "flash_atten": "flash_attention",
        "linear2": "attention_output_linear",
        "linear3": "mlp_up_linear",
        "gelu": "gelu",
        "linear4": "mlp_down_linear",
        "res_add": "residual_add",
        "linear_final": "logits_linear",
        "parallel_cross_entropy_128": "cross_entropy",
        "firstStage_optimizer": "optimizer_first_stage",
        "middleStage_optimizer": "optimizer_middle_stage",
        "lastStage_optimizer": "optimizer_last_stage",
    }
)
COLLECTIVES: Mapping[str, str] = MappingProxyType(
    {
        "allreduce": "mp_all_reduce",
        "allreduce_large": "dp_all_reduce",
        "allgather_large": "dp_all_gather",
        "p2p": "pp_p2p",
    }
)
OLDER_FORMAT = "optimizer"
DTYPES: Mapping[str, str] = MappingProxyType({"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"})

_FILE_NAME = re.compile(
    r"(?P<gpu>[^_]+)_(?P<function>\w+?)_(?P<precision>[a-z]+\d+)(?:_(?P<nodes>\d+)_(?P<gpus>\d+))?\.csv",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One measurement file and what its name says; `layout` is (nodes, GPUs per node) where it names one."""

    path: Path
    gpu: str
    function: str
    precision: str
    layout: tuple[int, int] | None

    @classmethod
    def named(cls, path: Path) -> "DataFile | None":
        """What the file's name says; None where it is not the name of a measurement file."""
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
    """Measurement files of a site's folder, those that name a layout first: the others repeat them.

    Raises:
        DataError: no such folder, or none of these files in it.
    """
    if not directory.is_dir():
        found = "is not a folder" if directory.exists() else "no such folder"
        raise DataError(f"{directory}: {found}; expected one with operator/ and nccl/ in it")
    paths = sorted(path for part in ("operator", "nccl") for path in directory.glob(f"{part}/*.csv"))
    files = [file for file in map(DataFile.named, paths) if file is not None]
    if not files:
        raise DataError(f"{directory}: holds no operator/GPU_FUNCTION_fp16.csv and no nccl/ file like it")
    return sorted(files, key=lambda file: (file.layout is None, file.path))
