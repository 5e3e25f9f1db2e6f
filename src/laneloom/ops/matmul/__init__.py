"""Matrix product."""
