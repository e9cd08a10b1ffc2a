"""Every valid layout of a model on a number of devices, evaluated in bulk: `search`, its question and its result."""

from kernelcast.runtime.search.number_set import NumberSet
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.result import Answer, SearchResult
from kernelcast.runtime.search.search import search
from kernelcast.runtime.search.space import Space

__all__ = ["Answer", "NumberSet", "Question", "SearchResult", "Space", "search"]
