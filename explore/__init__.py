"""The explorer: shipped bundles, a database and traces in the browser, on top of `serve` (docs/explore.md)."""
