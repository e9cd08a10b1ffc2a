"""The command line: parses, calls one public function, prints."""
