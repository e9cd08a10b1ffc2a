"""DeepSpeed: its JSON configuration (docs/frameworks.md)."""

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.frameworks.nested import parse_json, render_json
from kernelcast.runtime.frameworks.rows import Facts, Found, Framework, Part, Row, Settings
from kernelcast.runtime.request.fields import OPTIONS


class Batches(Row):
    """A micro-batch, how often it is accumulated, and the global batch: their ratio is dp."""

    micro = "train_micro_batch_size_per_gpu"
    steps = "gradient_accumulation_steps"
    whole = "train_batch_size"
    keys = (micro, steps, whole)
    fields = ("micro_batch", "micro_batches", "global_batch", "dp")

    def write(self, facts: Facts) -> Part:
        values = (facts["micro_batch"], facts["micro_batches"], facts["global_batch"])
        return Part(dict(zip(self.keys, values, strict=True)))

    def read(self, settings: Settings, facts: Facts) -> Found:
        """As far as they are set: "auto" is left to a trainer."""
        kind = OPTIONS["global_batch"].kind
        micro, steps, whole = (
            None if settings.get(key, "auto") == "auto" else kind.parse(key, settings[key])
            for key in self.keys
        )
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


DEEPSPEED = Framework(
    title="DeepSpeed",
    table="deepspeed.toml",
    own=(Batches(),),
    parse=parse_json,
    render=render_json,
    is_form_of=lambda text: text.lstrip().startswith("{"),
)
