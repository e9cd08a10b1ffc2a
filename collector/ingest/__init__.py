"""Traces of real runs into the store: `kernelcast ingest`. No torch here."""

from kernelcast.collector.ingest.run import Ingested, ingest_traces, operator_counts

__all__ = ["Ingested", "ingest_traces", "operator_counts"]
