"""Data kept in memory: the bundle with all models loaded, the site's settings, and estimators of shipped hardware."""

import gc
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Self

from kernelcast.runtime import Estimator, KernelcastError, ModelConfig
from kernelcast.runtime.answers.fabric_choice import FabricChoice, find_fabric
from kernelcast.runtime.catalogue import SCHEME, all_hardware, hardware_bundle, load_bundle
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.fabric import Fabric
from kernelcast.runtime.request.models import built_in_names, load_model
from kernelcast.walltime.fields import Given, is_path
from kernelcast.walltime.job import read_site

REMEMBERED_BYTES = 8 << 20
"""Memory for estimates and regressors' answers, per bundle: a bound for a long-lived server."""
MOST_LOADED = 4


class NamedHardware:
    """Estimators of shipped hardware, loaded on first use; the most recently used ones stay."""

    def __init__(self, *, most: int = MOST_LOADED) -> None:
        self._most = most
        self._known: OrderedDict[str, Estimator] = OrderedDict()
        self._lock, self._loading = threading.Lock(), threading.Lock()

    def estimator(self, name: object) -> Estimator:
        """The estimator of hardware by its short name.

        Raises:
            UsageError: no such hardware ships.
        """
        if not isinstance(name, str) or name not in all_hardware():
            raise UsageError(field="hardware", found=name, expected=f"one of {', '.join(all_hardware())}")
        found = self._get(name)
        if found is not None:
            return found
        with self._loading:  # what is loaded already answers meanwhile
            found = self._get(name)
            if found is None:
                found = Estimator(hardware_bundle(name), remembered_bytes=REMEMBERED_BYTES)
                found.predictor.load()
                with self._lock:
                    self._known[name] = found
                    is_full = len(self._known) > self._most
                    if is_full:
                        self._known.popitem(last=False)
                if is_full:
                    # It refers to itself, and its loaded models, which Python does not count, are most of its memory.
                    gc.collect()
        return found

    def put(self, name: str, estimator: Estimator) -> None:
        """One that is loaded already."""
        with self._lock:
            self._known[name] = estimator

    def _get(self, name: str) -> Estimator | None:
        with self._lock:
            found = self._known.get(name)
            if found is not None:
                self._known.move_to_end(name)
            return found


_MODEL_SUFFIXES = (".toml", ".json")
_SITE = "site file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """One bundle and one site, as they were when they were loaded. No path of this machine is in any answer.

    `models` are the built-in ones and the site's by name, `fabrics` the site's; `site` are its fields, without bundle
    and folder of models; `problems` are lines about models of the site that cannot be read. `hardware` answers for what
    ships, where a request names it; `most_chunks` is the limit for the chunks of a layout.
    """

    name: str
    estimator: Estimator
    loaded_at: str
    models: Mapping[str, ModelConfig]
    fabrics: Mapping[str, FabricChoice]
    site: Mapping[str, Given]
    problems: tuple[str, ...]
    hardware: NamedHardware = field(default_factory=NamedHardware)
    most_chunks: int | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of the bundle's file."""
        return self.estimator.bundle.digest

    def limited(self, most_chunks: int) -> Self:
        """The same for layouts of at most `most_chunks` chunks."""
        return replace(self, estimator=self.estimator.limited(most_chunks), most_chunks=most_chunks)

    def estimator_of(self, hardware: object) -> Estimator:
        """The estimator of shipped hardware, or of the server's own bundle for None.

        Raises:
            UsageError: no such hardware ships.
        """
        if hardware is None:
            return self.estimator
        found = self.hardware.estimator(hardware)
        return found if self.most_chunks is None else found.limited(self.most_chunks)

    @classmethod
    def load(cls, path: Path, environment: Mapping[str, str], *, calibrated: bool = True) -> Self:
        """Read and verify a bundle, load every model in it, and read the site's file.

        Without `calibrated`, the bundle's calibration is not applied.

        Raises:
            DataError: the bundle is missing, damaged, or holds a model that cannot be loaded.
            DataError, UsageError: the site's file is damaged or has a wrong field.
        """
        # Errors and answers name the bundle by its path: from here on, by the file's name alone.
        bundle = replace(load_bundle(path), path=Path(path.name))
        estimator = Estimator(bundle, remembered_bytes=REMEMBERED_BYTES, calibrated=calibrated)
        estimator.predictor.load()
        given = read_site(environment)
        models, problems = _models(given)
        site = {name: replace(field, origin=_SITE) for name, field in given.items() if name not in _OWN}
        model = site.get("model")
        if model is not None and is_path(str(model.value)):
            chosen = load_model(str(model.value))
            models[chosen.name] = chosen
            site["model"] = replace(model, value=chosen.name)
        fabrics: dict[str, FabricChoice] = {}
        fabric = site.get("fabric")
        if fabric is not None:
            own = find_fabric(str(fabric.value))
            # A bundle is called by its file's name alone, as the server's own.
            name = own.name if isinstance(own, Fabric) else Path(own.name).name
            fabrics[name] = own if isinstance(own, Fabric) else replace(own, name=name)
            site["fabric"] = replace(fabric, value=name)
        hardware = NamedHardware()
        if str(path).startswith(SCHEME):
            hardware.put(str(path).removeprefix(SCHEME), estimator)
        return cls(
            name=path.name,
            estimator=estimator,
            loaded_at=datetime.now(UTC).isoformat(timespec="seconds"),
            models=MappingProxyType(models),
            fabrics=MappingProxyType(fabrics),
            site=MappingProxyType(site),
            problems=tuple(problems),
            hardware=hardware,
        )


_OWN = ("bundle", "hardware", "models")


def _models(given: Mapping[str, Given]) -> tuple[dict[str, ModelConfig], list[str]]:
    """Built-in models, overridden by the sound ones of the site's folder."""
    models = {name: load_model(name) for name in built_in_names()}
    problems: list[str] = []
    if "models" not in given:
        return models, problems
    folder = Path(str(given["models"].value))
    try:
        # .toml goes before .json of the same name, as in `kernelcast walltime`.
        names = sorted(os.listdir(folder), key=lambda name: (name.endswith(".toml"), name))
    except OSError as error:
        return models, [f"site's models {folder}: cannot be read ({error.strerror})"]
    for name in names:
        if name.endswith(_MODEL_SUFFIXES):
            try:
                models[Path(name).stem] = load_model(folder / name)
            except KernelcastError as error:
                problems.append(f"left out: {error}")
    return models, problems
