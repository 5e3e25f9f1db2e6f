"""Machine code of the copies ahead of Hopper's products: wide loads and stores, little arithmetic."""

from __future__ import annotations

from collections import Counter

import pytest
from sampled import rarely

torch = pytest.importorskip("torch")

from sass_listing import sass_of  # noqa: E402

from laneloom.codegen import compile_kernel  # noqa: E402
from laneloom.device.pieces import MatrixCopy, PiecesLaunch, cut_into_pieces  # noqa: E402
from laneloom.device.prepared import specialise  # noqa: E402

POINTERS = {
    torch.uint8: "*u8", torch.int16: "*i16", torch.int32: "*i32", torch.int64: "*i64", torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
}  # fmt: skip


def mnemonics(source, copied, dtype, pieces, orders, *, rows=1000, k=520, offset=0):
    """Of the launch that copies a matrix for each of `orders`: contiguous along K ("k") or along rows ("r").

    source, copied: torch's types of the matrices and their copies; offset: elements in front of the matrices."""
    strides = {"k": (k, 1), "r": (1, rows)}
    launch = PiecesLaunch(*(MatrixCopy(dtype, pieces, rows, k, strides[order]) for order in orders), pdl=True)
    matrix, copy = torch.empty(64, dtype=source)[offset:], torch.empty(64, dtype=copied)
    arguments = launch.arguments(matrix, copy, matrix, copy)
    names = cut_into_pieces.arg_names
    pointers = {name: POINTERS[x.dtype] for name, x in zip(names, arguments, strict=False) if name.endswith("_ptr")}
    signature, constants, divisible = specialise(
        cut_into_pieces, dict(zip(names, arguments, strict=True)), pointers)  # fmt: skip
    code = compile_kernel(
        cut_into_pieces, gpu="sm_90a", signature=signature, constants=constants, attrs=divisible,
        num_warps=launch.num_warps, options={"launch_pdl": True},
    )  # fmt: skip
    assert code.spills == 0
    assert code.lds_bytes <= 16 << 10, "eight programs an SM"
    found = sass_of(code)
    assert found.count("PREEXIT") == 1, "the next kernel's programs may start beside this one's"
    first_access = next(i for i, name in enumerate(found) if name.startswith(("LDG", "STG")))
    assert "ACQBULK" in found[:first_access], "nothing is read or written before the kernel ahead has ended"
    return found


def count(found, name):
    return Counter(found)[name]


@pytest.mark.covering
@pytest.mark.parametrize("orders", ["k", "rr", "kr", *rarely("r", "kk", "rk")])
@pytest.mark.parametrize(("kind", "copied", "pieces"), [("tf32", torch.float32, 2), ("bf16", torch.bfloat16, 3)])
def test_fp32_comes_and_its_pieces_go_in_vectors(kind, copied, pieces, orders):
    found = mnemonics(torch.float32, copied, kind, pieces, orders)
    bodies = len(set(orders))  # operands that lie alike share the code
    elements = 32 // copied.itemsize * bodies
    assert count(found, "LDG.E.128") == elements // 4
    assert count(found, "STG.E.128") == pieces * elements * copied.itemsize // 16
    assert {name for name in found if name.startswith(("LDG", "STG"))} == {"LDG.E.128", "STG.E.128"}
    # Addresses, masks and a division are half of them.
    assert len(found) <= 36 * elements


@pytest.mark.covering
@pytest.mark.parametrize("order", "kr")
@pytest.mark.parametrize("dtype", ["uint8", "fp8", "fp16", "fp32", "fp64"])
def test_whole_elements_of_every_size_go_in_vectors(dtype, order):
    types = {"uint8": torch.uint8, "fp8": torch.float8_e4m3fn, "fp16": torch.float16, "fp32": torch.float32}
    torch_dtype = types.get(dtype, torch.float64)
    found = mnemonics(torch_dtype, torch_dtype, dtype, 1, order, k=528)
    # Bytes change lanes slowly, so that each lane stores the eight that it loaded.
    bits = 64 if torch_dtype.itemsize == 1 else 128
    assert {name for name in found if name.startswith("LDG")} == {f"LDG.E.{bits}"}
    assert {name for name in found if name.startswith("STG")} == {f"STG.E.{bits if order == 'k' else 128}"}


@pytest.mark.covering
@pytest.mark.parametrize("orders", ["kk", "kr"])
@pytest.mark.parametrize("place", [{"rows": 999, "k": 519}, {"offset": 1}])
def test_what_no_vector_begins_at_is_loaded_one_by_one_and_stored_in_vectors(place, orders):
    found = mnemonics(torch.float32, torch.float32, "tf32", 2, orders, **place)
    assert {name for name in found if name.startswith("LDG")} == {"LDG.E"}
    assert {name for name in found if name.startswith("STG")} == {"STG.E.128"}
