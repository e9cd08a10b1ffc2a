"""The model of a measured step: built in, a table of its runs file, or a file."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kernelcast.runtime import ModelConfig, UsageError, load_model
from kernelcast.runtime.errors import shown
from kernelcast.runtime.request.models import built_in_name, built_in_names, unknown_model


@dataclass(frozen=True, slots=True, kw_only=True)
class RunModels:
    """The models of a runs file's `[models.NAME]` tables, and the folder of its relative paths."""

    tables: Mapping[str, ModelConfig]
    folder: Path

    @classmethod
    def of(cls, tables: object, *, folder: Path) -> Self:
        """The models of the value of `models` in a file.

        Raises:
            UsageError: no table of tables, a field is wrong, or a name belongs to a built-in model.
        """
        if not isinstance(tables, dict):
            raise UsageError(f"models is {shown(tables)}, expected tables [models.NAME]")
        models = {}
        for name, fields in tables.items():
            where = f"models.{name}" if name.isidentifier() else f"models.{shown(name)}"
            if name in built_in_names():
                raise UsageError(f"{where}: a built-in model has this name, expected another")
            if not isinstance(fields, dict):
                raise UsageError(f"{where} is {shown(fields)}, expected a table of fields")
            models[name] = ModelConfig.from_document(fields, where=where, name=name)
        return cls(tables=models, folder=folder)

    def named(self, run: Mapping[str, Any]) -> ModelConfig:
        """The model that a run's `model` names, with the run's `sequence_length` if it has one.

        Raises:
            DataError: the file that it names is missing, unreadable, or not TOML or JSON.
            UsageError: there is no such model, or a field is wrong.
        """
        name = run.get("model")
        if type(name) is not str or not name:
            found = shown(name) if "model" in run else "missing"
            raise UsageError(f"model is {found}, expected a model's name or file")
        model = self._named(name)
        if "sequence_length" not in run:
            return model
        return model.with_sequence_length(run["sequence_length"])

    def files(self, names: Iterable[object]) -> tuple[str, ...]:
        """Which of the models' names are files."""
        return tuple(
            dict.fromkeys(
                name
                for name in names
                if isinstance(name, str) and name not in self.tables and not built_in_name(name)
            )
        )

    def _named(self, name: str) -> ModelConfig:
        if name in self.tables:
            return self.tables[name]
        if built_in_name(name):
            return load_model(name)
        path = self.folder / name
        if path.suffix in (".toml", ".json") or _exists(path):
            return load_model(path)
        more = "the path of a .toml or .json file, from the file's folder, works too"
        raise unknown_model(name, [*self.tables, *built_in_names()], more)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long a name, a null byte
        return False
