"""DeepSpeed: its JSON configuration (docs/frameworks.md)."""

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.frameworks.facts import Facts
from kernelcast.runtime.frameworks.framework import Framework
from kernelcast.runtime.frameworks.nested import parse_json, render_json
from kernelcast.runtime.frameworks.rows import (
    Beyond,
    Choice,
    Found,
    Lacks,
    OptimizerOffload,
    Option,
    Part,
    Row,
    Same,
    Settings,
    lacks,
    recomputed_partly,
)
from kernelcast.runtime.request.fields import OPTIONS


class Batches(Row):
    """A micro-batch, how often it is accumulated, and the global batch: their ratio is dp."""

    micro = "train_micro_batch_size_per_gpu"
    steps = "gradient_accumulation_steps"
    whole = "train_batch_size"
    keys = (micro, steps, whole)
    fields = ("micro_batch", "micro_batches", "global_batch", "dp")

    def write(self, facts: Facts) -> Part:
        """All three."""
        values = (facts["micro_batch"], facts["micro_batches"], facts["global_batch"])
        return Part(dict(zip(self.keys, values, strict=True)))

    def read(self, settings: Settings, facts: Facts) -> Found:
        """As far as they are set: "auto" is left to a trainer."""
        kind = OPTIONS["global_batch"].kind
        sizes = [
            None if settings.get(key, "auto") == "auto" else kind.parse(key, settings[key])
            for key in self.keys
        ]
        micro, steps, whole = sizes
        if micro is None:
            return Found({"global_batch": whole} if whole else {})
        if whole is None:
            return Found({"micro_batch": micro, "micro_batches": steps or 1})
        if steps is None:
            return Found({"micro_batch": micro, "global_batch": whole})
        dp, rest = divmod(whole, micro * steps)
        if rest:
            expected = f"a multiple of {self.micro} · {self.steps} ({micro} · {steps})"
            raise UsageError(f"{self.whole} is {whole}, expected {expected}")
        return Found({"micro_batch": micro, "global_batch": whole, "dp": dp})


_INTERVAL = "pipeline.activation_checkpoint_interval"
_OFFLOAD = "zero_optimization.offload_optimizer"
_HALF = {"bf16.enabled": True}


def _cut(facts: Facts) -> str:
    counts = ",".join(map(str, facts["layer_counts"]))
    return f"layers per chunk {counts} (PipelineModule decides)" if facts["pp"] > 1 else ""


def _zero_with_pipeline(facts: Facts) -> str:
    return (
        f"zero {facts['zero']} with pp {facts['pp']} (PipelineEngine takes 0 and 1)"
        if (facts["zero"] > 1 and facts["pp"] > 1)
        else ""
    )


def _zero_with_tensors(facts: Facts) -> str:
    return (
        f"zero 3 with tp {facts['tp']} (AutoTP takes 0 to 2)" if facts["zero"] > 2 and facts["tp"] > 1 else ""
    )


def _recompute(facts: Facts) -> str:
    return (
        "recompute full without a pipeline (the model decides)"
        if (facts["recompute"] == "full" and facts["pp"] == 1)
        else ""
    )


ROWS = (
    Same("tensor_parallel.autotp_size", "tp", 1, usual=1, unset=("auto", 0)),
    Same("pipeline.stages", "pp", 1, usual=1),
    Same("sequence_parallel_size", "cp", 1, usual=1),
    Beyond("cp", Choice("context_exchange", (Option("all_to_all"),))),
    Choice(
        "recompute",
        (Option("none"), Option("none", {_INTERVAL: 0}, only_read=True), Option("full", {_INTERVAL: 1})),
    ),
    Batches(),
    Same("zero_optimization.stage", "zero", 0),
    OptimizerOffload(f"{_OFFLOAD}.device", "cpu", f"{_OFFLOAD}.ratio"),
    Choice("dtype", (Option("float32"), Option("bfloat16", _HALF), Option("float16", _HALF))),
    Lacks(_cut),
    Lacks(_zero_with_pipeline),
    Lacks(_zero_with_tensors),
    Lacks(_recompute),
    Lacks(recomputed_partly),
    lacks("recompute_early_stop", False),
    lacks("dropout", 0.0),
    lacks("fp8_recipe", "none"),
    lacks("expert_capacity", 0.0),
    lacks("offload_activations", 0.0),
    lacks("attention_kernel", "as-measured"),
    lacks("lora_rank", 0),
    lacks("optimizer", "adam_fused"),
    lacks("optimizer_states", "float32"),
    lacks("schedule", "1f1b"),
    lacks("virtual_stages", 1),
    lacks("shard_group", 0),
    lacks("ep", 1),
    lacks("expert_tp", 1),
    lacks("sequence_parallel", False),
    Lacks(lambda facts: f"sequence_length {facts['sequence_length']}"),
    Lacks(lambda facts: "the model"),
)

DEEPSPEED = Framework(
    name="deepspeed",
    title="DeepSpeed",
    rows=ROWS,
    parse=parse_json,
    render=render_json,
    is_form_of=lambda text: text.lstrip().startswith("{"),
)
