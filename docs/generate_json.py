"""Write docs/json.md: every JSON form, with the keys and types of documents that the code makes (`make docs`).

docs/json_examples.py makes the documents, docs/json.toml has the words: per form where it comes `from`, perhaps a
`text`, and `keys`, key path → meaning. In a path `[]` stands for the items of a list, `<feature>` for every key of a
table whose keys are data, and `stages[].{index, layers}` are keys that share a row. `like` explains what stands below a
path as what stands below a path of this or another form: a pair of form (empty: the same) and path. `types` has the few
types that no document shows.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelcast.docs.json_examples import documents
from kernelcast.docs.markdown import table

DOCS = Path(__file__).resolve().parent
PAGE, WORDS = DOCS / "json.md", DOCS / "json.toml"
_TYPES = {str: "text", int: "integer", float: "number", bool: "boolean", type(None): "null", dict: "object"}
_LAST_STEP = re.compile(r"\[\]$|\.?[^.\[\]]+$")


@dataclass(frozen=True, slots=True)
class Form:
    """What docs/json.toml says of a form; `known` are all paths of its rows and those above them."""

    source: str
    text: str
    rows: Mapping[tuple[str, ...], str]
    like: Mapping[str, tuple[str, str]]
    types: Mapping[str, str]
    known: frozenset[str]

    @classmethod
    def of(cls, name: str, values: Mapping[str, Any]) -> "Form":
        """A table of docs/json.toml."""
        rows = {_paths(key): words for key, words in values["keys"].items()}
        like = {path: (form or name, there) for path, (form, there) in values.get("like", {}).items()}
        known = frozenset(above for paths in rows for path in paths for above in _above(path))
        return cls(values["from"], values.get("text", "").strip(), rows, like, values.get("types", {}), known)

    def named(self, path: str, key: str) -> str | None:
        """The path that words have for a key below `path`: its own, or that of every key; None without any."""
        own = f"{path}.{key}".lstrip(".")
        if own in self.known:
            return own
        every = re.compile(rf"{re.escape(path)}\.?<[^>]+>")
        return next((one for one in self.known if every.fullmatch(one)), None)

    def explained_like(self, path: str) -> tuple[str, str] | None:
        """Form and path that explain what stands below a path, or in the items of its list."""
        return self.like.get(path) or self.like.get(f"{path}[]")


@dataclass(slots=True)
class Reference:
    """The forms, and the types that documents have at every path of them; items of lists have a path of their own."""

    forms: Mapping[str, Form]
    types: dict[tuple[str, str], set[str]] = field(default_factory=dict)

    def add(self, document: Mapping[str, Any]) -> None:
        """Take in the keys and types of a document."""
        self._add(document["format"], "", document)

    def _add(self, form: str, path: str, value: Any) -> None:
        if isinstance(value, dict):
            self.types.setdefault((form, path), set()).add("object")
            for key, one in value.items():
                if key != "format":
                    self._add(*self._place(form, path, key), one)
        elif isinstance(value, list):
            self.types.setdefault((form, path), set()).add("list")
            for one in value:
                self._add(form, f"{path}[]", one)
        else:
            self.types.setdefault((form, path), set()).add(_TYPES[type(value)])

    def _place(self, form: str, path: str, key: str) -> tuple[str, str]:
        """Form and path whose words explain a key that a document has below `path`."""
        known = self.forms.get(form)
        if known is None:
            raise SystemExit(f"docs/json.toml: {form} is missing")
        if (own := known.named(path, key)) is not None:
            return form, own
        return (
            self._place(*known.like[path], key) if path in known.like else (form, f"{path}.{key}".lstrip("."))
        )

    def check(self) -> None:
        """Refuse keys without words, and words of keys that no document has.

        Raises:
            SystemExit: with one line.
        """
        explained = {
            (name, path)
            for name, form in self.forms.items()
            for paths, words in form.rows.items()
            for path in paths
            if words or form.explained_like(path)
        }
        missing = [one for one in self.types if one not in explained and self._is_leaf(*one)]
        spare = explained - self.types.keys()
        stated = {(name, path) for name, form in self.forms.items() for path in form.types}
        valueless = {one for one in explained - spare if self._has_no_value(*one)}
        for what, found in (
            ("no words for", missing),
            ("no document has", sorted(spare)),
            ("no document has a value of", sorted(valueless - stated)),
            ("a type is stated, which documents show, of", sorted(stated - valueless)),
        ):
            if found:
                raise SystemExit(
                    f"docs/json.toml: {what} {', '.join(f'{form} {path}' for form, path in found)}"
                )

    def _is_leaf(self, form: str, path: str) -> bool:
        """Whether a path needs words: items take their list's words, tables their keys' words."""
        below = path
        while (form, f"{below}[]") in self.types:
            below += "[]"
        has_keys = any(other == form and one.startswith(f"{below}.".lstrip(".")) for other, one in self.types)
        return not path.endswith("[]") and not has_keys

    def _has_no_value(self, form: str, path: str) -> bool:
        """Whether documents only have null or empty lists there."""
        types = self.types[form, path]
        return types <= {"null", "list"} and (form, f"{path}[]") not in self.types

    def type_text(self, form: str, path: str, words: str) -> str:
        """Types in words; null too where the meaning has `null` in backticks."""
        if path in self.forms[form].types:
            return self.forms[form].types[path]
        types = self.types[form, path] | ({"null"} if "`null`" in words else set())
        if "number" in types:
            types -= {"integer"}
        if path.endswith(">") and len(types) > 2:
            return "any"
        texts = sorted(types - {"list", "null"}) + (["null"] if "null" in types else [])
        if "list" in types:
            texts.insert(0, self._list_text(form, f"{path}[]"))
        return " or ".join(texts)

    def _list_text(self, form: str, path: str) -> str:
        if (form, path) not in self.types:
            return "list"
        first, *rest = self.type_text(form, path, "").split(" or ")
        plural = re.sub(r"^(list|\w+)", r"\1s", first)
        return f"list of {' or '.join([plural, *rest])}"


def page(made: Iterable[Mapping[str, Any]], words: Path = WORDS) -> str:
    """The whole page, of documents of all forms.

    Raises:
        SystemExit: a key has no words, or words are of a key that no document has.
    """
    values = tomllib.loads(words.read_text(encoding="utf-8"))
    reference = Reference({name: Form.of(name, one) for name, one in values["forms"].items()})
    for document in made:
        reference.add(document)
    reference.check()
    contents = table(
        ("form", "from"),
        [(f"[`{name}`](#{_anchor(name)})", one.source) for name, one in reference.forms.items()],
        is_padded=False,
    )
    sections = (line for name in reference.forms for line in _section(reference, name))
    return "\n".join([values["begin"].strip(), "", *contents, *sections, ""])


def _section(reference: Reference, name: str) -> Iterator[str]:
    form = reference.forms[name]
    yield from ("", f"## `{name}`", "", f"From {form.source}. {form.text}".rstrip(), "")
    rows = []
    for paths, words in form.rows.items():
        types = [reference.type_text(name, path, words) for path in paths]
        like = [_like(name, *target) for path in paths if (target := form.explained_like(path)) is not None]
        meaning = "; ".join(filter(None, [words, *dict.fromkeys(like)]))
        names = _steps(paths)
        rows.append((", ".join(f"`{one}`" for one in names), _types(names, types), meaning))
    yield from table(("key", "type", "meaning"), rows, is_padded=False)
    with_row = {path for paths in form.rows for one in paths for path in (one, f"{one}[]")}
    for path, target in form.like.items():
        if path not in with_row:
            yield from ("", f"All other keys{f' of `{path}`' if path else ''}: {_like(name, *target)}.")


def _types(names: Sequence[str], types: Sequence[str]) -> str:
    """The types of keys that share a row: the first, then each type that differs from the previous key's."""
    changed = [one for before, *one in zip(types, names[1:], types[1:], strict=False) if before != one[1]]
    return ", ".join([types[0], *(f"`{name}` {type_}" for name, type_ in changed)])


def _like(name: str, form: str, path: str) -> str:
    link = f"[`{form}`](#{_anchor(form)})"
    if not path:
        return f"as in {link}"
    return f"as `{path}`" if form == name else f"as `{path}` of {link}"


def _paths(key: str) -> tuple[str, ...]:
    before, _, several = key.partition("{")
    return tuple(f"{before}{one}" for one in several.rstrip("}").split(", ")) if several else (key,)


def _above(path: str) -> Iterator[str]:
    while path:
        yield path
        path = _LAST_STEP.sub("", path)


def _steps(paths: tuple[str, ...]) -> list[str]:
    """The first path, and of the others what differs."""
    before = _LAST_STEP.sub("", paths[0])
    return [paths[0], *(path.removeprefix(before) for path in paths[1:])]


def _anchor(form: str) -> str:
    return re.sub(r"[^\w-]", "", form)


if __name__ == "__main__":
    PAGE.write_text(page(documents()), encoding="utf-8")
    print(f"{PAGE.name}: written")
