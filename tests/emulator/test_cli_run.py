"""`laneloom run`: assembly files on arrays."""

import json

import numpy as np
import pytest
import triton
import triton.language as tl
from typer.testing import CliRunner

from laneloom.cli import app
from laneloom.codegen import compile_kernel, compile_llvm_ir
from laneloom.isa import objdump
from laneloom.verify import decode

# out[group * 32 + lane] = scale * lane + group, by hand, without metadata.
BY_HAND = """
\t.amdgcn_target "amdgcn-amd-amdhsa--gfx1151"
\t.text
scale_kernel:
\ts_load_b64 s[4:5], s[0:1], 0x0
\ts_load_b32 s6, s[0:1], 0x8
\tv_cvt_f32_u32_e32 v1, v0
\tv_cvt_f32_u32_e32 v2, s2
\ts_lshl_b32 s3, s2, 5
\tv_add_lshl_u32 v3, v0, s3, 2
\ts_waitcnt lgkmcnt(0)
\tv_fmac_f32_e32 v2, s6, v1
\tglobal_store_b32 v3, v2, s[4:5]
\ts_endpgm
\t.rodata
\t.amdhsa_kernel scale_kernel
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t\t.amdhsa_system_sgpr_workgroup_id_x 1
\t\t.amdhsa_next_free_vgpr 4
\t\t.amdhsa_next_free_sgpr 8
\t\t.amdhsa_wavefront_size32 1
\t.end_amdhsa_kernel
"""


@triton.jit
def axpy_kernel(x_ptr, y_ptr, out_ptr, a, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    x, y = tl.load(x_ptr + offsets, mask=inside), tl.load(y_ptr + offsets, mask=inside)
    tl.store(out_ptr + offsets, a * x + y, mask=inside)


@pytest.fixture(scope="module")
def axpy(tmp_path_factory):
    """Triton's assembly of out = a x + y in FP32 for gfx1201."""
    code = compile_kernel(
        axpy_kernel, gpu="gfx1201", attrs=[], constants={"BLOCK": 128},
        signature={"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "a": "fp32", "n": "i32"},
    )  # fmt: skip
    path = tmp_path_factory.mktemp("run") / "axpy.amdgcn"
    path.write_text(code.asm)
    path.with_suffix(".hsaco").write_bytes(code.binary)
    return path


def call(*arguments):
    return CliRunner().invoke(app, ["run", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.mark.parametrize("strict", [[], ["--strict", "--order", "4"]])
def test_assembly_by_hand(tmp_path, strict):
    source, result = tmp_path / "scale.s", tmp_path / "out.npy"
    source.write_text(BY_HAND)
    done = call(
        source, "--grid", "3", "--block", "32", "--arg", f"out:f32:3x32:-> {result}", "--arg", "f32:0.5", *strict
    )
    assert done.exit_code == 0, done.output
    want = 0.5 * np.arange(32) + np.arange(3)[:, None]
    assert np.array_equal(np.load(result), want.astype(np.float32))
    assert "scale_kernel on gfx1151, emulated: 3 workgroups of 32 threads" in done.output
    assert "30 wave-instructions" in done.output
    assert "global_store_b32" in done.output


def test_tritons_assembly_with_arrays_of_every_origin(axpy, tmp_path):
    x = np.random.default_rng(1).standard_normal(300).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    arguments = [f"--arg={tmp_path / 'x.npy'}", "--arg=f32:300:arange", f"--arg=out:f32:300->{tmp_path / 'o.npy'}"]
    done = call(axpy, "--grid", "3,1,1", *arguments, "--arg=f32:2", "--arg=i32:290", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    out = np.load(tmp_path / "o.npy")
    assert np.array_equal(out[:290], 2 * x[:290] + np.arange(290, dtype=np.float32))
    assert np.isnan(out[290:]).all()
    assert (report["kernel"], report["gpu"], report["grid"]) == ("axpy_kernel", "gfx1201", [3, 1, 1])
    assert report["instructions"] == sum(report["executed"].values())
    assert [a["changed"] for a in report["arrays"]] == [0, 0, 290]
    assert report["arrays"][2]["not_finite"] == 10
    assert report["arrays"][1]["max"] == 299


def test_a_code_object_beside_its_assembly_needs_no_disassembler(axpy, tmp_path, monkeypatch):
    monkeypatch.delenv(objdump.VARIABLE, raising=False)
    monkeypatch.setattr(objdump, "_programs", lambda path: iter(()))
    arguments = ["--arg=f32:8:ones", "--arg=f32:8:zeros", "--arg=out:f32:8", "--arg=f32:1", "--arg=i32:8"]
    assert call(axpy.with_suffix(".hsaco"), "--grid", "1", *arguments).exit_code == 0
    alone = tmp_path / "alone.hsaco"
    alone.write_bytes(axpy.with_suffix(".hsaco").read_bytes())
    done = call(alone, "--grid", "1", *arguments)
    assert done.exit_code == 2
    assert "install LLVM 19 or newer or ROCm, or set LANELOOM_OBJDUMP" in " ".join(done.output.split())


def test_an_overrun_is_an_error_with_the_argument(axpy):
    done = call(
        axpy, "--grid", "1", "--arg=f32:8:ones", "--arg=f32:8:zeros", "--arg=out:f32:7", "--arg=f32:1", "--arg=i32:8"
    )
    assert done.exit_code == 1
    assert "argument '2: out:f32:7' (28 bytes)" in done.output


@pytest.mark.parametrize("fill", ["random", "zeros", "ones", "arange", "nan"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64", "i8", "i32", "i64", "u8", "u64"])
def test_arrays_of_every_type(dtype, fill):
    from laneloom.cli.run import _parse_argument

    value = _parse_argument(f"{dtype}:3x5:{fill}", np.random.default_rng(0)).value
    numbers = decode(value, "bf16") if dtype == "bf16" else value.astype(np.float64)
    assert value.shape == (3, 5)
    if fill == "arange":
        assert np.array_equal(numbers.ravel(), np.arange(15))
    elif fill == "nan":
        assert (
            np.isnan(numbers) if "f" in dtype else value.view(f"u{value.itemsize}") == 2 ** (8 * value.itemsize) - 1
        ).all()
    elif fill == "random":
        assert len(np.unique(numbers)) > 3
    else:
        assert (numbers == (fill == "ones")).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grid", "1,2,3,4"], "--grid: expected 1 to 3 positive numbers"),
        (["--grid", "1", "--arg=f31:8:ones"], "unknown type 'f31'"),
        (["--grid", "1", "--arg=f32:8:twos"], "expected TYPE:SHAPE:FILL"),
        (["--grid", "1", "--arg=f32:8x8"], "'8x8' is no number of type f32"),
        (["--grid", "1", "--arg=absent.npy"], "cannot read absent.npy"),
        (["--grid", "1", "--arg=f32:8:ones"], "takes 7 arguments, or all but the last 2, got 1"),
        (["--grid", "1", *["--arg=f32:8:ones"] * 5], "expects a scalar of 4 bytes as argument 3"),
        (["--grid", "1", *["--arg=f32:8:ones"] * 3, "--arg=f16:1", "--arg=i32:8"], "f16:1: axpy_kernel expects a sc"),
        (
            ["--grid", "33554432", *["--arg=f32:8:ones"] * 3, "--arg=f32:1", "--arg=i32:8"],
            "grid: 33554432 workgroups of 128 along x are 2^32 threads or more",
        ),
    ],
)
def test_refusals(axpy, arguments, message):
    done = call(axpy, *arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


@pytest.mark.parametrize("text", ["f16:1e9", "f16:-65520", "bf16:1e39", "f32:3.5e38", "f32:1e400", "f64:-1e400"])
def test_a_number_that_would_become_infinite_is_refused(axpy, text):
    arrays = ["--arg=f32:8:ones"] * 3
    done = call(axpy, "--grid", "1", *arrays, f"--arg={text}", "--arg=i32:8")
    dtype, number = text.split(":")
    assert done.exit_code == 2
    assert f"{number} does not fit in {dtype}, where it would be infinite" in " ".join(done.output.split())


@pytest.mark.parametrize("text", ["f16:65519", "bf16:3.4e38", "f32:3.4e38", "f64:1e308"])
def test_the_largest_numbers_and_infinity_are_arguments(text):
    from laneloom.cli.run import _parse_argument

    dtype, number = text.split(":")
    assert _parse_argument(text, None).value == float(number)
    assert _parse_argument(f"{dtype}:-inf", None).value == -np.inf
    assert _parse_argument(f"{dtype}:Infinity", None).value == np.inf
    assert np.isnan(_parse_argument(f"{dtype}:nan", None).value)


@pytest.mark.parametrize(("n", "stored"), [("i8:3", 3), ("i8:-1", 0), ("u8:255", 255)])
def test_a_narrow_integer_is_the_same_number_in_a_wider_argument(axpy, n, stored):
    arrays = ["--arg=f32:256:ones", "--arg=f32:256:ones", "--arg=f32:256:zeros"]
    done = call(axpy, "--grid", "2", *arrays, "--arg=f32:1", f"--arg={n}", "--json")
    assert json.loads(done.stdout)["arrays"][2]["changed"] == stored


def test_a_file_that_does_not_say_its_workgroup_needs_one(tmp_path):
    source = tmp_path / "scale.s"
    source.write_text(BY_HAND)
    done = call(source, "--grid", "1", "--arg=out:f32:32", "--arg=f32:1")
    assert done.exit_code == 2
    assert "give --block" in done.output


def test_a_file_without_a_kernel_is_refused(tmp_path):
    path = tmp_path / "notes.s"
    path.write_text("not assembly\n")
    done = call(path, "--gpu", "gfx1151", "--grid", "1", "--block", "32")
    assert done.exit_code == 2
    assert "no kernel in this assembly: it has no .amdhsa_kernel" in " ".join(done.output.split())


def test_an_array_without_elements_is_a_null_pointer(tmp_path):
    (tmp_path / "scale.s").write_text(BY_HAND)
    done = call(tmp_path / "scale.s", "--grid", "1", "--block", "32", "--arg", "f32:0:zeros", "--arg", "f32:0.5")
    assert done.exit_code == 1
    assert "through a null pointer" in done.output


ON_BYTES = """
define amdgpu_kernel void @k(ptr addrspace(1) %out) {
  %lane = call i32 @llvm.amdgcn.workitem.id.x()
  %at = getelementptr i8, ptr addrspace(1) %out, i32 %lane
  %old = atomicrmw OPERATION ptr addrspace(1) %at, i8 3 syncscope("agent") monotonic
  ret void
}
"""


@pytest.mark.parametrize("operation", ["add", "or"])
@pytest.mark.parametrize("gpu", ["gfx942", "gfx1201"])
def test_atomics_on_the_last_bytes_of_an_array(tmp_path, gpu, operation):
    """LLVM makes them atomics of the words around, the last of which ends past the array."""
    file, out = tmp_path / "k.s", tmp_path / "out.npy"
    file.write_text(compile_llvm_ir(ON_BYTES.replace("OPERATION", operation), gpu).asm)
    command = ["run", str(file), "--grid", "1", "--strict", "--arg"]
    assert CliRunner().invoke(app, [*command, f"u8:5:zeros -> {out}", "--block", "5"]).exit_code == 0
    assert np.load(out).tolist() == [3] * 5
    too_many = CliRunner().invoke(app, [*command, "u8:5:zeros", "--block", "9"])
    assert "past the end of argument" in " ".join(too_many.output.split())


def test_a_narrow_terminal_cuts_no_heading(tmp_path):
    (tmp_path / "scale.s").write_text(BY_HAND)
    arguments = ["--grid", "1", "--block", "32", "--arg", "f32:32:random", "--arg", "f32:0.5"]
    done = CliRunner().invoke(app, ["run", str(tmp_path / "scale.s"), *arguments], env={"COLUMNS": "40"})
    heading = next(line for line in done.output.splitlines() if "shape" in line)
    assert heading.split() == ["arg", "type", "shape", "changed", "min", "max", "mean", "NaN,", "inf"]


@pytest.mark.parametrize("kind", ["complex128", "f4,f4", "U3", ">f4", "float128"])
def test_files_of_what_has_no_least_and_no_largest(tmp_path, kind):
    """An array of any kind is so many bytes to a kernel; those of another byte order come in the GPU's."""
    try:
        x = np.ones(32, kind)
    except TypeError:
        pytest.skip(f"numpy has no {kind} here")
    (tmp_path / "scale.s").write_text(BY_HAND)
    np.save(tmp_path / "x.npy", x)
    arguments = ["--grid", "1", "--block", "32", f"--arg={tmp_path / 'x.npy'} -> {tmp_path / 'y'}", "--arg=f32:1"]
    done = call(tmp_path / "scale.s", *arguments, "--json")
    assert done.exit_code == 0, done.output
    (told,) = json.loads(done.stdout)["arrays"]
    assert told["saved_to"] == str(tmp_path / "y.npy")
    written = np.load(told["saved_to"]).tobytes()
    assert np.array_equal(np.frombuffer(written[:128], "<f4"), np.arange(32))
    assert written[128:] == x.tobytes()[128:]
    assert told["changed"] in range(1, 33)
    assert (told["max"] == 31) == (kind == ">f4")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("i8:300", "300 does not fit in the 8 bits of i8"),
        ("i32:4294967296", "4294967296 does not fit in the 32 bits"),
        ("u64:-9223372036854775809", "does not fit in the 64 bits"),
        ("f32:8:ones->", "expected a file after ->"),
    ],
)
def test_arguments_that_would_be_others(tmp_path, argument, message):
    (tmp_path / "scale.s").write_text(BY_HAND)
    done = call(tmp_path / "scale.s", "--grid", "1", "--block", "32", "--arg", argument)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


def test_a_file_of_several_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.ones(3))
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    (tmp_path / "scale.s").write_text(BY_HAND)
    done = call(tmp_path / "scale.s", "--grid", "1", "--block", "32", f"--arg={tmp_path / 'x.npy'}")
    assert "x.npy holds several arrays (.npz), expected one" in " ".join(done.stderr.split())


@pytest.mark.parametrize("content", [b"not numbers\n", b"\x80\x04N."])
def test_a_file_that_numpy_does_not_know_is_not_called_pickled(tmp_path, content):
    (tmp_path / "x.npy").write_bytes(content)
    (tmp_path / "scale.s").write_text(BY_HAND)
    done = call(tmp_path / "scale.s", "--grid", "1", "--block", "32", f"--arg={tmp_path / 'x.npy'}")
    assert done.exit_code == 2
    assert "it holds no array of numbers in NumPy's format" in " ".join(done.stderr.split())


#: how a kernel gets its second argument, the scale of BY_HAND: with a wider load, per lane, in a register of its own
_READS = {
    "alone": "",
    "wide": "\ts_load_b128 s[4:7], s[0:1], 0x0\n",
    "by lanes": "\tv_mov_b32 v1, 0\n\tglobal_load_b32 v1, v1, s[0:1] offset:8\n",
    "by nobody": "\ts_mov_b32 s6, 0\n",
}


@pytest.mark.parametrize("how", _READS)
def test_arguments_that_are_not_given(tmp_path, how):
    """Their bytes, up to the size that the descriptor says, are 0; strict mode reports what depends on them."""
    wait = "\ts_waitcnt lgkmcnt(0)\n"
    text = BY_HAND.replace("\t\t.amdhsa_next_free_vgpr", "\t\t.amdhsa_kernarg_size 12\n\t\t.amdhsa_next_free_vgpr")
    if how != "alone":
        more = "\ts_waitcnt vmcnt(0)\n\tv_mov_b32 v2, v1\n" if how == "by lanes" else ""
        text = text.replace(wait, f"{wait}{_READS[how]}{wait}{more}")
    (tmp_path / "scale.s").write_text(text)
    given = tmp_path / "scale.s", "--grid", "1", "--block", "32", "--arg", f"out:f32:32->{tmp_path / 'out.npy'}"
    assert call(*given).exit_code == 0
    assert not np.load(tmp_path / "out.npy").any()
    strict = call(*given, "--strict")
    said = " ".join(strict.stderr.split())
    missing = "the kernel reads arguments that the launch does not give: bytes 8 to 11 of the argument block"
    reported = f"stores bits that nobody wrote (v2); {missing}; " in said
    assert (strict.exit_code != 0) == reported == (how != "by nobody"), strict.output
    assert call(*given, "--arg", "f32:0.5", "--strict").exit_code == 0
