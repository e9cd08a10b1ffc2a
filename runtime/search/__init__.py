"""Every valid layout of a model on so many devices, evaluated in bulk: `search`, and what it takes and gives."""

from kernelcast.runtime.search.number_set import NumberSet
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.result import Answer, SearchResult
from kernelcast.runtime.search.search import search
from kernelcast.runtime.search.space import Space

__all__ = ["Answer", "NumberSet", "Question", "SearchResult", "Space", "search"]
