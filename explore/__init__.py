"""What ships, a database and traces in the browser: pages beside `serve`'s answers (docs/explore.md)."""
