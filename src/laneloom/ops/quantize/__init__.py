"""8-bit floats and the scales of their blocks of 128: what a product with `scale_a` and `scale_b` takes."""
