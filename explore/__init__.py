"""What ships, a database and traces in the browser of this machine: pages beside `serve`'s answers (docs/explore.md)."""
