"""What commands print."""

import re


def without_next(text: str) -> str:
    """Without the last line, which says what to do next."""
    return re.sub(r"\n*\nnext: [^\n]*\n\Z", "\n", text)
