"""Products with weights of few bits: 4-bit and 8-bit numbers, each group along K with a scale."""
