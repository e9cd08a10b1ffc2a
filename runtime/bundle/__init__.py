"""The bundle `NAME.kcast`: its file, what it says about itself, checks, comparison and signatures."""
