"""Text that is no JSON, repaired and counted; documents that end too early."""

import json

import pytest

from kernelcast.collector.traces.trace_text import closed_document, read_parts, repaired


@pytest.mark.parametrize(
    ("content", "value", "repairs"),
    [
        (rb'"C:\Users\\q"', "C:\\Users\\q", {"backslash that escapes nothing": 1}),
        (rb'"\q\w\n\u00e9\u00zz"', "\\q\\w\n\u00e9\\u00zz", {"backslash that escapes nothing": 3}),
        (b'"a\x01b\tc"', "a\x01b\tc", {"control character in a text": 2}),
        (
            b'[NaN, -Infinity, "NaN"]',
            [None, None, "NaN"],
            {"number that JSON does not have (NaN, Infinity)": 2},
        ),
        (b'"\xff\xef\xbf\xbd"', "\ufffd\ufffd", {"byte that is not UTF-8": 1}),
        (rb'"\ud83d\ude00 \ud83d \\ud83d"', "\U0001f600 \ufffd \\ud83d", {"half of a surrogate pair": 1}),
        (b'\xef\xbb\xbf"a"', "a", {"byte order mark": 1}),
        (rb'"a\\b\"\/c"', 'a\\b"/c', {}),
    ],
)
def test_text_is_repaired_where_it_is_wrong(content: bytes, value: object, repairs: dict[str, int]) -> None:
    text, found = repaired(content)
    assert json.loads(text) == value
    assert found == repairs


@pytest.mark.parametrize("more", [10, 2000])
def test_a_document_is_closed_after_its_last_whole_event(more: int) -> None:
    whole = b'{"traceEvents": [{"name": "}, {", "args": {"a": {}}}, {"name": "b", "args": {"a": {}}}'
    cut = whole + b', {"name": "' + b"x" * more + b'", "args": {"a": {}'
    closed = closed_document(cut, json.loads)
    assert closed is not None
    assert [event["name"] for event in json.loads(closed)["traceEvents"]] == ["}, {", "b"]
    assert closed_document(b'{"traceEvents": [{"name": ', json.loads) is None


@pytest.mark.parametrize("size", [1, 7, 40])
def test_parts_of_any_size_hold_every_event_once(size: int) -> None:
    events = [{"name": f"}}, {{ {number}", "args": {"a": [{}, {"b": number}]}} for number in range(40)]
    text = json.dumps({"first": 1, "traceEvents": events, "last": {"x": [{}, {}]}}).encode()
    taken: list[object] = []
    rest = read_parts(
        (text[first : first + size] for first in range(0, len(text), size)),
        lambda part: taken.extend(json.loads(part)),
    )
    document = json.loads(rest)
    assert [*taken, *document["traceEvents"]] == events
    assert (document["first"], document["last"]) == (1, {"x": [{}, {}]})
    assert len(document["traceEvents"]) < 3
