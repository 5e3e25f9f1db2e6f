"""Requests that a stranger made: each is refused, or done, in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from test_cli_run import BY_HAND
from typer.testing import CliRunner

import laneloom
from laneloom.cli import app
from laneloom.errors import ArgumentError, UnsupportedError

torch = pytest.importorskip("torch")

RUN = ["--grid", "3", "--block", "32", "--arg", "out:f32:3x32", "--arg", "f32:0.5"]


def call(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200"})


def test_a_mask_is_not_ignored_by_quantize_weight():
    with pytest.raises(UnsupportedError, match="w: expected an array without a mask"):
        laneloom.quantize_weight(np.ma.masked_array(np.ones((2, 64), np.float32), mask=np.eye(2, 64)), "int8")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda w: w.to("meta"), "w: expected a tensor with numbers"),
        (lambda w: w.to_sparse(), "w: expected a strided tensor, got torch.sparse_coo"),
        (lambda w: torch.nested.nested_tensor([w, w]), "w: expected a strided tensor, got a nested one"),
    ],
    ids=["meta", "sparse", "nested"],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_weights_without_numbers_in_place(make, message):
    with pytest.raises(UnsupportedError, match=message):
        laneloom.quantize_weight(make(torch.randn(4, 64)))


def test_a_config_of_groups_by_its_text():
    a, b, ends = torch.randn(4, 16).half(), torch.randn(2, 16, 8).half(), torch.tensor([2, 4], dtype=torch.int32)
    with laneloom.emulated("gfx1151"):
        want = laneloom.grouped_matmul(a, b, ends)
        for wrong in ("slow", 3):
            with pytest.raises(ArgumentError, match="config: expected"):
                laneloom.grouped_matmul(a, b, ends, config=wrong)
        text = "wmma:block_m=16,block_n=16,block_k=16,num_warps=1,waves_n=1"
        got = laneloom.grouped_matmul(a, b, ends, config=text)
    assert torch.allclose(got.float(), want.float(), atol=1e-2)


def test_the_odd_operand_is_the_one_that_is_named():
    with laneloom.emulated("gfx1151"), pytest.raises(ArgumentError, match="out: expected ndarray, as a and b are"):
        laneloom.matmul(np.ones((2, 2), np.float16), np.ones((2, 2), np.float16), out=torch.ones(2, 2).half())


@pytest.mark.parametrize("prefix", [b"\xef\xbb\xbf", b"; \xe9\n"], ids=["mark", "Latin-1"])
def test_assembly_in_other_encodings_runs(tmp_path, prefix):
    source = tmp_path / "scale.s"
    source.write_bytes(prefix + BY_HAND.encode())
    done = call("run", source, *RUN)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("shape", ["9" * 22, "x".join(["1"] * 66)], ids=["long", "axes"])
def test_shapes_that_numpy_has_not(tmp_path, shape):
    source = tmp_path / "scale.s"
    source.write_text(BY_HAND)
    done = call("run", source, *RUN[:-4], "--arg", f"f32:{shape}:ones", "--arg", "f32:1")
    assert done.exit_code == 2
    assert "numpy makes no array of this shape" in done.output


@pytest.mark.parametrize(
    "option", [("--dtype", "bf16"), ("--shape", "1,2,3"), ("--layout", "nt"), ("--weight", "int4")]
)
def test_options_of_operations_are_not_ignored_of_files(tmp_path, option):
    source = tmp_path / "scale.s"
    source.write_text(BY_HAND)
    done = call("isa", source, *option)
    assert done.exit_code == 2
    assert f"{option[0]} belongs to an operation" in done.output


def test_check_says_what_cannot_be_assembled(tmp_path):
    source = tmp_path / "scale.s"
    source.write_text(BY_HAND.replace("s_endpgm", "s_endpgm_now"))
    done = call("isa", source, "--check")
    assert done.exit_code != 0
    assert "s_endpgm_now" in done.output


def test_a_record_that_is_no_object(tmp_path):
    file = tmp_path / "records.jsonl"
    file.write_text(json.dumps([1, 2]) + "\n")
    assert "is no benchmark record: it holds [1, 2] in place of an object" in call("compare", file, file).output


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_a_full_disk_behind_the_help():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "laneloom", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.strip() == "laneloom: No space left on device"


def grouped(ends, dtype=torch.float16, *, weight=None):
    x = torch.ones(6, 32, dtype=dtype)
    ends = torch.tensor(ends, dtype=torch.int32)
    if weight is not None:
        return laneloom.quantized_matmul(x, weight, ends=ends)
    return laneloom.grouped_matmul(x, torch.ones(3, 32, 16, dtype=dtype), ends)


@pytest.mark.parametrize("ends", [[4, 2, 6], [-1, 2, 6]])
def test_groups_that_fall_or_begin_below_zero(ends):
    weight = laneloom.quantize_weight(torch.ones(3, 16, 32), "int8")
    with laneloom.emulated("gfx1151"):
        for quantized in (None, weight):
            grouped([2, 2, 6], weight=quantized)
            with pytest.raises(ArgumentError, match="ends: expected numbers from 0 on that never fall, got "):
                grouped(ends, weight=quantized)
        x, w = np.ones((6, 32), np.float16), np.ones((3, 32, 16), np.float16)
        with pytest.raises(ArgumentError, match="ends: expected numbers from 0 on that never fall, got "):
            laneloom.grouped_matmul(x, w, np.array(ends, np.int32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_groups_of_wide_numbers_on_rdna(dtype):
    with laneloom.emulated("gfx1151"), pytest.raises(UnsupportedError, match="gfx1151 multiplies groups of 16- and 8-"):
        grouped([2, 2, 6], dtype)


def test_one_tensor_without_numbers_is_not_a_result_without():
    ends = torch.tensor([2, 2, 6], dtype=torch.int32, device="meta")
    q, cache = torch.ones(2, 1, 4, 32).half(), torch.ones(2, 48, 2, 32).half()
    with laneloom.emulated("gfx1151"):
        with pytest.raises(ArgumentError, match="ends: expected a tensor on cpu, as a is, got one on meta"):
            laneloom.grouped_matmul(torch.ones(6, 32).half(), torch.ones(3, 32, 16).half(), ends)
        with pytest.raises(ArgumentError, match="cache_lengths: expected a tensor on cpu, as q is, got one on meta"):
            laneloom.attention_decode(q, cache, cache, cache_lengths=ends[:2])


@pytest.mark.parametrize("name", ["max_seqlen_q", "max_seqlen_k"])
def test_a_longest_sequence_that_is_not(name):
    q = torch.ones(20, 2, 32).half()
    starts = torch.tensor([0, 7, 20], dtype=torch.int32)
    given = {"max_seqlen_q": 13, "max_seqlen_k": 13, name: 12}
    with laneloom.emulated("gfx1151"):
        with pytest.raises(ArgumentError, match=f"{name}: expected at least 13, which cu_seqlens_{name[-1]} has, got"):
            laneloom.flash_attention(q, q, q, cu_seqlens_q=starts, cu_seqlens_k=starts, **given)
        laneloom.flash_attention(q, q, q, cu_seqlens_q=starts, cu_seqlens_k=starts, **{**given, name: 99})


def test_words_for_flags():
    for name in ("strict", "profile"):
        with pytest.raises(ArgumentError, match=f"{name}: expected True or False, got 'no'"):
            laneloom.emulated("gfx1151", **{name: "no"}).__enter__()
    for name in ("always", "captured"):
        with pytest.raises(ArgumentError, match=f"{name}: expected True or False, got 'no'"):
            laneloom.patched(**{name: "no"})
