"""Two products in a row whose intermediate stays in registers."""
