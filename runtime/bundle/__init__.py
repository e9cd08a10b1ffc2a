"""The bundle `NAME.kcast`: its file, its manifest, checks, comparison and signatures."""
