"""Write the tables of docs/models.md from what ships: fields of a model, built-in models, families of config.json.

python docs/generate_models.py
"""

from pathlib import Path

from kernelcast.docs.markdown import filled, table
from kernelcast.runtime.request.fields import MODEL
from kernelcast.runtime.request.models import built_in_names, load_model
from kernelcast.runtime.request.models.families import families
from kernelcast.runtime.shipped import MODELS
from kernelcast.runtime.step.parameters import active_parameters, total_parameters

PAGE = Path(__file__).resolve().parent / "models.md"
_OF_ALL = frozenset.intersection(*(frozenset(family.fields) for family in families().known.values()))


def page(text: str) -> str:
    """The page with its tables written again."""
    for name, content in (
        ("built in", _built_in()),
        ("fields", _fields()),
        ("families", _families()),
        ("refused", _refused()),
    ):
        text = filled(text, name, content)
    return text


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join([*table(heads, rows, is_padded=False), ""])


def _built_in() -> str:
    rows = []
    for name in built_in_names():
        model = load_model(name)
        lines = (MODELS / f"{name}.toml").read_text(encoding="utf-8").splitlines()
        source = " ".join(line[1:].strip() for line in lines if line.startswith("#"))
        active = f"{_in_billions(active_parameters(model))}" if model.experts else ""
        total = _in_billions(total_parameters(model))
        rows.append((f"`{name}`", total, active, f"{model.sequence_length:,}", source))
    return "\n".join(
        [
            *table(
                ("name", "parameters", "of a token", "tokens of a sequence", "source"), rows, is_padded=False
            ),
            "",
        ]
    )


def _in_billions(count: int) -> str:
    return f"{count / 1e9:.4g} B" if count >= 1e9 else f"{count / 1e9:.3g} B"


def _fields() -> str:
    rows = []
    for field in MODEL.values():
        default = "needed" if field.is_required else field.otherwise or str(field.default).lower() or "empty"
        choices = f": {field.kind.expected}" if field.kind.types == (str,) and field.kind.values else ""
        rows.append((f"`{field.name}`", f"{field.help.rstrip('.')}{choices}.", default))
    return _table(("field", "meaning", "not given"), rows)


def _families() -> str:
    rows = [
        (f"`{name}`", ", ".join(f"`{field}`" for field in family.fields if field not in _OF_ALL))
        for name, family in families().known.items()
    ]
    rows += [
        (f"`{name}`", f"its `text_config`, by default as `{kind}`")
        for name, kind in families().text_parts.items()
    ]
    return _table(("model_type", "read in addition to the sizes"), rows)


def _refused() -> str:
    refused = families().refused
    reasons = dict.fromkeys(refused.values())
    rows = [
        (reason, ", ".join(f"`{name}`" for name, why in refused.items() if why == reason))
        for reason in reasons
    ]
    return _table(("reason", "model_type"), rows)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
