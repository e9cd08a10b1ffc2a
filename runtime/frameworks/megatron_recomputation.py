"""Megatron-LM's flags of recomputation."""

from typing import get_args

from kernelcast.runtime.frameworks.facts import Facts
from kernelcast.runtime.frameworks.rows import Found, Part, Row, Settings
from kernelcast.runtime.request.field_types import choice
from kernelcast.runtime.request.fields import LAYOUT, MODEL, RecomputeModule


class Recompute(Row):
    """What is recomputed: modules of every layer, or whole layers.

    Of these perhaps only the first of every chunk ("block"), or some at once ("uniform").
    """

    granularity = "--recompute-granularity"
    activations = "--recompute-activations"
    modules = "--recompute-modules"
    method = "--recompute-method"
    layers = "--recompute-num-layers"
    keys = (granularity, activations, modules, method, layers)
    fields = ("recompute", "recompute_modules", "recompute_layers", "recompute_together")

    def write(self, facts: Facts) -> Part:
        """Modules where they are not the usual ones; whole layers with their method."""
        kind, modules, layers, together = (facts[name] for name in self.fields)
        if kind == "none":
            return Part({})
        lost = ("recompute_early_stop (all is run again)",) if facts["recompute_early_stop"] else ()
        if kind == "selective":
            own = {} if modules == LAYOUT["recompute_modules"].default else {self.modules: modules}
            return Part({self.granularity: kind, **own}, lost)
        method = ("block", layers) if layers else ("uniform", together)
        return Part({self.granularity: kind, self.method: method[0], self.layers: method[1]}, lost)

    def read(self, settings: Settings, facts: Facts) -> Found:
        """Nothing is recomputed where nothing is said."""
        usual = "selective" if self.activations in settings else "none"
        asked = settings.get(self.granularity)
        kind = usual if asked is None else choice(("selective", "full")).parse(self.granularity, asked)
        if kind == "full":
            method = choice(("uniform", "block")).parse(self.method, settings.get(self.method, "uniform"))
            count = MODEL["layers"].kind.parse(self.layers, settings.get(self.layers, 1))
            field, other = ("recompute_layers", "recompute_together")[:: 1 if method == "block" else -1]
            return Found({"recompute": kind, field: count, other: LAYOUT[other].default})
        if kind == "none" or self.modules not in settings:
            return Found({"recompute": kind})
        listed = settings[self.modules]
        known = tuple(name for name in get_args(RecomputeModule) if name in listed)
        unknown = [name for name in listed if name not in known]
        notes = (f"{self.modules} {' '.join(unknown)} is not modelled",) if unknown else ()
        if not known:
            return Found({"recompute": "none"}, notes)
        return Found({"recompute": kind, "recompute_modules": known}, notes)
