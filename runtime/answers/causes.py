"""Why an answer may be trusted less: the causes that warnings are grouped by."""

from enum import StrEnum


class Cause(StrEnum):
    """What makes an answer doubtful, the gravest first."""

    LEFT_OUT = "left_out"  # not in the sum
    EXTRAPOLATED = "extrapolated"  # asked beyond what was measured
    SUBSTITUTED = "substituted"  # answered by measurements of something else
    DESCRIBED = "described"  # computed from a description of links, not measured
    TRANSFERRED = "transferred"  # measured on another cluster
    DOUBTFUL = "doubtful"  # a regressor that does not follow its measurements

    @property
    def in_words(self) -> str:
        """For readers."""
        return self.value.replace("_", " ")
