"""Hugging Face's `config.json`, as downloaded, read as a `ModelConfig` by the table of families.

Taken are the sizes and what changes parameters or cost. What does not (rotary base and scaling, initialisation, token
ids, dropout, serving) is left aside; what would change cost and is not modelled is refused (docs/models.md).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelcast.runtime.errors import UsageError, error_context, shown, shown_value
from kernelcast.runtime.request.fields import MODEL
from kernelcast.runtime.request.model import FoundModel, ModelConfig, model_file
from kernelcast.runtime.request.models.config_file import Config
from kernelcast.runtime.request.models.families import NEEDED, Family, Given, families

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_STORED = ("fp8", "mxfp4")
"""Forms that released weights are stored in after a training in others, as the papers tell it (docs/models.md)."""
_LONGEST_TRAINED = 8192
"""Positions that a file may have as the length of training; more are what the model serves, and came with a later
training on longer sequences. Of the built-in models Mixtral and Gemma 3 alone were trained on longer ones from the
beginning: there the question is one too many."""


def from_huggingface(values: Mapping[str, Any], path: Path) -> FoundModel:
    """The model of a Hugging Face configuration of one of the `families`, with notes.

    - The sequence length is the longest that the model was pre-trained on, as far as the file tells: the smallest
      of `max_position_embeddings` and `original_max_position_embeddings`, where rotary scaling stretched it later.
    - Of a model with a vision encoder, the text model in `text_config` where it stands apart.
    - Attention is the fused kernel (flash); dropout is left out, as in the operators that are measured.
    - The name is the last part of `_name_or_path`, else that of the file, or of its folder for a `config.json`.

    UsageError for another family, quantised weights, or a field that is missing or wrong; one line that names file,
    field, what was found and what was expected.
    """
    where = model_file(path)
    with error_context(where):
        config, notes = _text_part(Config(values))
        notes += _stored(Config(values))
        family = _family(config)
        fields = _fields(config, family)
        served = fields["sequence_length"]
        trained = _trained_lengths(config)
        fields["sequence_length"] = min([served, *trained])
        model = ModelConfig(name=_name(values, path), **fields)
    longest = ""
    if served > _LONGEST_TRAINED and not trained and not model.learned_positions:
        length = family.fields["sequence_length"].names
        longest = f"{where}: {next((name for name in length if config.has(name)), length[0])} is {served}"
    return FoundModel(model=model, notes=tuple(f"{where}: {note}" for note in notes), longest=longest)


def _text_part(config: Config) -> tuple[Config, list[str]]:
    """The configuration of the text model, and a note about any other part."""
    kind, parts = config.values["model_type"], families().text_parts
    if type(kind) is not str or kind not in parts:
        return config, []
    # A file that was made by hand may have the text model's fields at the top.
    text = config.values if config.values.get("text_config") is None else config.table("text_config").values
    own = text["model_type"] if text is not config.values and text.get("model_type") else parts[kind]
    note = f"the vision encoder of {kind} is ignored, only the text model is predicted"
    return Config({**text, "model_type": own}), [note]


def _stored(config: Config) -> list[str]:
    """A note about weights stored in fewer bits than they were trained in; UsageError for other quantised ones."""
    quantised = config.values.get("quantization_config")
    if quantised is None:
        return []
    form = quantised.get("quant_method") if isinstance(quantised, dict) else None
    if form not in _STORED:
        raise UsageError("quantization_config is set: training quantised weights is not modelled")
    return [f"its weights are stored in {form}; training is predicted in the type of the measured operators"]


def _family(config: Config) -> Family:
    kind, table = config.values["model_type"], families()
    has_vision = config.has("vision_config", "audio_config")
    layers = table.layers_of(config.values)
    if type(kind) is not str or not (kind in table.known or kind in table.refused or has_vision or layers):
        raise UsageError(
            field="model_type", found=kind, expected=", ".join((*table.known, *table.text_parts))
        )
    if kind not in table.known:
        reason = table.refused.get(kind) or layers or table.vision
        raise UsageError(f"model_type is {shown(kind)}: {reason}")
    family = table.known[kind]
    for name in _EXPERTS:
        if "experts" not in family.fields and config.size(name, default=1) > 1:
            raise UsageError(field=name, found=config.values[name], expected=f"none: {kind} has no experts")
    for name, value in family.only.items():
        if config.has(name) and config.values[name] != value:
            raise UsageError(field=name, found=config.values[name], expected=shown_value(value))
    return family


def _fields(config: Config, family: Family) -> dict[str, Any]:
    """The model's fields: first those that stand there, then those that follow from them."""
    found: dict[str, Any] = {}
    for name, source in family.fields.items():
        if isinstance(source, Given):
            kind = MODEL[name].kind
            value = (
                config.needed(source.names, kind)
                if source.default is NEEDED
                else config.read(source.names, kind)
            )
            found[name] = source.default if value is None else value
        elif not callable(source):
            found[name] = source
    for name, source in family.fields.items():
        if callable(source):
            found[name] = source(config, found)
    return found


def _trained_lengths(config: Config) -> list[int]:
    """Lengths of training that rotary scaling stretched, newer files keep it with the rotary base."""
    name = "original_max_position_embeddings"
    tables = (config, *config.tables("rope_scaling", "rope_parameters"))
    return [table.size(name) for table in tables if table.has(name)]


def _name(values: Mapping[str, Any], path: Path) -> str:
    given = values.get("_name_or_path")
    last = given.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] if type(given) is str else ""
    folder = path.resolve().parent.name if path.stem == "config" else path.stem
    for name in (last, folder, str(values["model_type"])):
        if name.strip(" .") and name.isprintable():
            return name
    return "model"
