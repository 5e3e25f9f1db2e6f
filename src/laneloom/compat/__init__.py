"""The seeds' own interfaces, name for name."""
