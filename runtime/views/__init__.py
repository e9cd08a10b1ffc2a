"""Pictures of an estimate: a trace for trace viewers, a page for browsers."""
