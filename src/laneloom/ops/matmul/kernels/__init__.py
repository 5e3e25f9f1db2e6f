"""One schedule per file: a kernel and its launch."""
