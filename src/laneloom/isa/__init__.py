"""What one instruction of a GPU does, and what a compiled kernel is made of."""
