"""Answers as they were sent, for questions that come again: an array of jobs, a user who submits once more."""

from collections import OrderedDict

_MOST_BYTES = 16 << 20
_LARGEST_BYTES = 256 << 10


class Remembered:
    """The answers used last, by question, byte for byte; bounded by their size together. For one thread."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._answers: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()

    def get(self, path: str, body: bytes) -> bytes | None:
        """The answer to this body, or None."""
        answer = self._answers.get((path, body))
        if answer is not None:
            self._answers.move_to_end((path, body))
        return answer

    def put(self, path: str, body: bytes, answer: bytes) -> None:
        """Remember an answer; the one that was not used for longest goes."""
        size = len(body) + len(answer)
        if size > _LARGEST_BYTES or (path, body) in self._answers:
            return
        self._answers[path, body] = answer
        self._bytes += size
        while self._bytes > self._most_bytes:
            (_, asked), dropped = self._answers.popitem(last=False)
            self._bytes -= len(asked) + len(dropped)
