"""The versioned SQLite store of measurements."""
