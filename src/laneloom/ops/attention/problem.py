"""What one attention is: sizes, dtype, and the band of keys that a query sees. No tensors, no GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import e, log2

HALVES = ("fp16", "bf16")
DTYPE_BYTES = {"fp16": 2, "bf16": 2, "fp8": 1}


def in_base_2(exponent: float) -> float:
    """What 2 has to be raised to for e to the power of `exponent`."""
    return exponent * log2(e)


@dataclass(frozen=True)
class AttentionProblem:
    """O[b,h,i,:] = sum over j of softmax_j(scale Q[b,h,i,:] . K[b,h//group,j,:]) V[b,h//group,j,:].

    Query i sees the keys j with first <= j - i <= last; None leaves that side open.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    d: int
    d_v: int
    dtype: str = "fp16"
    scale: float = 1.0
    first: int | None = None
    last: int | None = None
    packed: bool = False  #: sequences of different lengths one after the other; queries and keys are the longest ones'
    out: str = ""  #: the dtype of O; empty for that of the operands
    softcap: float = 0.0  #: scores become softcap tanh(score / softcap); 0 for none
    bottom_right: bool = True  #: packed: first and last count from the diagonal that ends in the last query and key

    @cached_property  # every launch asks for it
    def code_key(self) -> AttentionProblem:
        """This problem without what compiled code does not depend on."""
        first, last = (None if end is None else 0 for end in (self.first, self.last))
        return replace(
            self, batch=1, heads=1, kv_heads=1, queries=1, keys=1, scale=1.0, first=first, last=last,
            softcap=float(self.softcap != 0),
        )

    @property
    def out_dtype(self) -> str:
        """What O is rounded to."""
        return self.out or self.dtype

    @property
    def group(self) -> int:
        """Query heads that share one head of keys and values."""
        return self.heads // self.kv_heads

    @property
    def masked(self) -> bool:
        """Whether some query may not see some key."""
        return self.first is not None or self.last is not None

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that it sees, of one head."""
        if not self.masked:
            return self.queries * self.keys
        total = 0
        for i in range(self.queries):
            low = 0 if self.first is None else max(0, i + self.first)
            high = self.keys if self.last is None else min(self.keys, i + self.last + 1)
            total += max(0, high - low)
        return total

    @property
    def flops(self) -> int:
        """Of the forward's two products; the backward's five count 2.5 times as much where D = D_V."""
        return 2 * self.batch * self.heads * self.pairs * (self.d + self.d_v)

    @property
    def bytes(self) -> int:
        """Device memory traffic of the forward if each tensor is read or written once."""
        out = self.d_v * DTYPE_BYTES[self.out_dtype]
        per_query = self.heads * self.queries * (self.d * DTYPE_BYTES[self.dtype] + out + 4)
        per_key = self.kv_heads * self.keys * (self.d + self.d_v) * DTYPE_BYTES[self.dtype]
        return self.batch * (per_query + per_key)

    @property
    def key(self) -> str:
        """Name of the tuning record."""
        band = f"_band{self.first}:{self.last}" if self.masked else ""
        cap = "_softcap" if self.softcap else ""
        return (
            f"attention/{self.dtype}/b{self.batch}_h{self.heads}:{self.kv_heads}_n{self.queries}:{self.keys}"
            f"_d{self.d}:{self.d_v}{band}{cap}"
        )

    @property
    def cap2(self) -> float | None:
        """`softcap` in base 2, as the general schedule's kernels take it; None for none."""
        return in_base_2(self.softcap) if self.softcap else None

    def scalars(self) -> tuple[float | int, ...]:
        """The kernels' scalar arguments: scale2, queries, keys, heads, group, first, last."""
        return (
            in_base_2(self.scale), self.queries, self.keys, self.heads, self.group,
            0 if self.first is None else self.first, 0 if self.last is None else self.last,
        )  # fmt: skip


def band(
    queries: int, keys: int, causal: str, left: int | None = None, right: int | None = None
) -> tuple[int | None, int | None]:
    """first and last of the band of `causal` ("none", "bottom_right", "top_left") and a window (left, right).

    An end that cuts no pair is None. Query i stands at key i + keys - queries, with "top_left" at key i.
    """
    offset = 0 if causal == "top_left" else keys - queries
    if causal != "none":
        right = 0
    first = None if left is None else offset - min(left, queries + keys)
    last = None if right is None else offset + min(right, queries + keys)
    if first is not None and first <= 1 - queries:
        first = None
    if last is not None and last >= keys - 1:
        last = None
    return first, last
