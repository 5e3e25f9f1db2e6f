"""Any function of three operands' bits, as gfx950's `v_bitop3` names it: by its truth table.

Bit n of the table is the result where the operands' bits, the first one highest, make n.
"""

from __future__ import annotations

import numpy as np

#: the tables of some functions: the operands' own are 0xF0, 0xCC and 0xAA, and the third may be left out of account
AND, OR, XOR = 0xF0 & 0xCC, 0xF0 | 0xCC, 0xF0 ^ 0xCC
AND_OR, OR3, XOR3 = AND | 0xAA, OR | 0xAA, XOR ^ 0xAA


def bits_of_three(table: int, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The function of the table on each bit of integers of one type."""
    result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), a.dtype)
    for n in range(8):
        if table >> n & 1:
            result |= (a if n & 4 else ~a) & (b if n & 2 else ~b) & (c if n & 1 else ~c)
    return result
