"""Batched matrix transpose: memory to memory, and the exchanges between lanes that it is made of."""
