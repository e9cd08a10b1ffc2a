"""Goals in addition to a layout, and which of them go together."""

from collections.abc import Mapping
from math import ceil
from typing import Any, Literal, get_args

from kernelcast.runtime.dataclass import dataclass, field
from kernelcast.runtime.errors import UsageError, shown
from kernelcast.runtime.request.fields import DATA
from kernelcast.runtime.request.layout import read_request

RankBy = Literal["time", "days", "cost", "energy"]
RANK_BY: tuple[RankBy, ...] = get_args(RankBy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The fields of `WISHES` that are given, prices of a device-hour by hardware ("": all others), and an order."""

    gpus: int | None = None
    tokens: int | None = None
    samples: int | None = None
    epochs: float | None = None
    sample_tokens: float | None = None
    packing_efficiency: float | None = None
    days: float | None = None
    largest: str | None = None
    prices: Mapping[str, float] = field(default_factory=dict)
    rank_by: RankBy | None = None

    @classmethod
    def of_data(cls, values: Mapping[str, Any]) -> "Wish":
        """How much is trained on, of the fields of `DATA` among `values`; UsageError where they do not go together."""
        given: dict[str, Any] = {name: values.get(name) for name in DATA}
        found = cls(**given)
        found._check_data()
        return found

    @property
    def is_open(self) -> bool:
        """Whether parts of the layout are searched."""
        return self.gpus is not None or self.days is not None or self.largest is not None

    def price(self, hardware: str | None) -> float | None:
        return self.prices.get(hardware or "", self.prices.get(""))

    @property
    def has_data(self) -> bool:
        return self.tokens is not None or self.samples is not None

    def data(self, sample_length: int) -> dict[str, Any] | None:
        """What is trained on, arguments of `training`; None where it is not given. A sample has room for
        `sample_length` tokens. UsageError where a mean sample is longer.
        """
        if not self.has_data:
            return None
        useful = self.packing_efficiency or 1.0
        if self.samples is None:
            return {"tokens": self.tokens, "useful": useful}
        own = self.sample_tokens or useful * sample_length
        if own > sample_length:
            longest = f"at most the length of a sample ({sample_length})"
            raise UsageError(field="sample_tokens", found=self.sample_tokens, expected=longest)
        tokens = max(1, round(self.samples * (self.epochs or 1.0) * own))
        return {"tokens": tokens, "useful": useful, "sample_tokens": own}

    def steps(self, samples_per_update: int, sample_length: int) -> int | None:
        """Whole updates, padding counted; None without an amount of data. Errors as `data`."""
        if (data := self.data(sample_length)) is None:
            return None
        # Rounding errors of the quotient must not add an update.
        tokens: float = data["tokens"] / data["useful"]
        return ceil(tokens / (samples_per_update * sample_length) * (1 - 1e-12))

    def _check_data(self) -> None:
        if self.tokens is not None and self.samples is not None:
            raise UsageError("{} is given with {}, expected one of them", fields=("samples", "tokens"))
        for name in ("epochs", "sample_tokens"):
            if getattr(self, name) is not None and self.samples is None:
                raise UsageError("{} is given without {}, expected both", fields=(name, "samples"))
        if self.packing_efficiency is not None and not self.has_data:
            fields = ("packing_efficiency", "tokens", "samples")
            raise UsageError("{} is given without {} or {}, expected one of them too", fields=fields)

    def check(self, values: Mapping[str, Any], hardware: tuple[str, ...]) -> None:
        """Check it with the other fields of a request that asks for `hardware` by name; else UsageError."""
        if self.rank_by is not None and len(hardware) < 2:
            raise UsageError(
                "{} is given with one hardware, expected several, such as a100-sxm,gh200", fields=("rank_by",)
            )
        for name in self.prices:
            if name and name not in hardware:
                expected = f"one of {', '.join(hardware)}" if hardware else "a price without a name"
                raise UsageError(f"price names hardware {shown(name)}, expected {expected}")
        self._check_data()
        if self.prices and not self.has_data:
            raise UsageError("{} is given without {}, expected both", fields=("price", "tokens"))
        if self.rank_by in ("days", "cost", "energy") and not self.has_data:
            raise UsageError(
                f"{{}} {self.rank_by} is given without {{}}, expected both", fields=("rank_by", "tokens")
            )
        if self.rank_by == "cost":
            unknown = [name for name in hardware if self.price(name) is None]
            if unknown:
                raise UsageError(
                    f"{{}} cost is given without {{}} of {', '.join(unknown)}, expected both",
                    fields=("rank_by", "price"),
                )
        if not self.is_open:
            if len(hardware) > 1:
                raise UsageError(
                    f"{{}} names {len(hardware)} devices, expected one, or also {{}}: each device then gets its own "
                    "layout",
                    fields=("hardware", "gpus"),
                )
            if "micro_batch" not in values:
                fields = ("micro_batch", "gpus", "global_batch")
                raise UsageError("{} is not given; to search for a layout, give {} and {}", fields=fields)
            read_request(values)
            return
        self._check_search(values, several=len(hardware) > 1)

    def _check_search(self, values: Mapping[str, Any], *, several: bool) -> None:
        if self.days is not None:
            other = "gpus" if self.gpus is not None else "largest" if self.largest is not None else None
            if other is not None:
                raise UsageError("{} is given with {}, expected one of them", fields=(other, "days"))
            if not self.has_data:
                raise UsageError("{} is given without {}, expected both", fields=("days", "tokens"))
        elif self.gpus is None:
            raise UsageError("{} is given without {}, expected both", fields=("largest", "gpus"))
        if several and (self.days is not None or self.largest is not None):
            name = "days" if self.days is not None else "largest"
            raise UsageError("{} is given with several hardware, expected one", fields=(name,))
        known = dict(values)
        if self.gpus is not None:
            known["gpus"] = self.gpus
        if self.largest == "global-batch":
            if "global_batch" in values:
                raise UsageError(
                    "{} is given with {} global-batch, which finds it", fields=("global_batch", "largest")
                )
        elif "global_batch" not in values:
            raise UsageError("{} is not given, which a search for a layout needs", fields=("global_batch",))
        if self.largest == "sequence-length" and "sequence_length" in values:
            fields = ("sequence_length", "largest")
            raise UsageError("{} is given with {} sequence-length, which finds it", fields=fields)
        from kernelcast.runtime.intent.best import check_open_request

        check_open_request(known)
