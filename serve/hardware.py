"""Estimators of shipped hardware, which a request may name; each is loaded on first use."""

import gc
import threading
from collections import OrderedDict

from kernelcast.runtime import Estimator
from kernelcast.runtime.catalogue.composition import hardware_bundle
from kernelcast.runtime.catalogue.hardware import all_hardware
from kernelcast.runtime.errors import UsageError

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
