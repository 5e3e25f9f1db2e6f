"""Clusters of workgroups on CDNA 5: who is where, copies to other members, the cluster's barrier."""

import numpy as np
import pytest
import triton
import triton.language as tl
from typer.testing import CliRunner

import laneloom
from laneloom.cli import app
from laneloom.emulator.launch import launch
from laneloom.emulator.memory import Region
from laneloom.emulator.program import Program
from laneloom.errors import ArgumentError, DeadlockError, HazardError, UnknownInstructionError

KERNEL = """
k:
{code}
\ts_endpgm
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 32
\t\t.amdhsa_next_free_sgpr 48
\t\t.amdhsa_group_segment_fixed_size 4096
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_wavefront_size32 1
\t.end_amdhsa_kernel
"""
# s20: the workgroup's number in a grid of s21 along x; s22: its rank in a cluster of two along x; s[2:3]: the array.
START = """s_load_b64 s[2:3], s[0:1], 0x0
\ts_wait_kmcnt 0x0
\ts_and_b32 s22, ttmp6, 15
\ts_lshl_b32 s20, ttmp9, 1
\ts_add_co_i32 s20, s20, s22
\tv_and_b32 v0, 0x3ff, v0
\tv_and_b32 v9, 31, v0
\tv_lshlrev_b32 v1, 2, v0"""
# Lane l of workgroup w stores v4 at 32 w + l, behind the 4 KiB of input.
STORE = """\ts_lshl_b32 s23, s20, 7
\tv_add_nc_u32 v5, s23, v1
\tglobal_store_b32 v5, v4, s[2:3] offset:4096"""
# One wave of each workgroup signals for it, when all of its waves are there.
MEET = """\ts_barrier_signal -1
\ts_barrier_wait -1
\ts_bfe_u32 s24, ttmp8, 0x50019
\ts_cbranch_scc1 {label}
\ts_barrier_signal -3
{label}:
\ts_barrier_wait -3"""


def run(code, grid, cluster, *, words=4096, threads=32, strict=False, seed=0, gpu="gfx1250"):
    memory = np.arange(words, dtype=np.uint32)
    region = Region("array", memory.ctypes.data, memory.nbytes, memory)
    launch(
        Program(KERNEL.format(code="\t" + code), gpu, strict=strict), grid, memory.ctypes.data.to_bytes(8, "little"),
        workgroup_size=threads, regions=[region], cluster=cluster, seed=seed,
    )  # fmt: skip
    return memory


@pytest.mark.parametrize("cluster", [(2, 2, 1), (4, 1, 2), (1, 1, 1)])
def test_who_is_where(cluster):
    """The workgroup's number by what LLVM computes of TTMP6, 7 and 9; the size; what IB_STS2 says."""
    grid = (4, 2, 2)
    code = """s_load_b64 s[2:3], s[0:1], 0x0
\ts_wait_kmcnt 0x0
\ts_bfe_u32 s4, ttmp6, 0x4000c
\ts_add_co_i32 s4, s4, 1
\ts_mul_i32 s4, s4, ttmp9
\ts_and_b32 s5, ttmp6, 15
\ts_add_co_i32 s4, s4, s5
\ts_bfe_u32 s6, ttmp6, 0x40010
\ts_add_co_i32 s6, s6, 1
\ts_and_b32 s7, ttmp7, 0xffff
\ts_mul_i32 s6, s6, s7
\ts_bfe_u32 s7, ttmp6, 0x40004
\ts_add_co_i32 s6, s6, s7
\ts_bfe_u32 s8, ttmp6, 0x40014
\ts_add_co_i32 s8, s8, 1
\ts_lshr_b32 s9, ttmp7, 16
\ts_mul_i32 s8, s8, s9
\ts_bfe_u32 s9, ttmp6, 0x40008
\ts_add_co_i32 s8, s8, s9
\ts_lshl_b32 s9, s6, 2
\ts_add_co_i32 s9, s9, s4
\ts_lshl_b32 s10, s8, 3
\ts_add_co_i32 s9, s9, s10
\ts_getreg_b32 s10, hwreg(HW_REG_IB_STS2, 6, 4)
\ts_getreg_b32 s11, hwreg(HW_REG_IB_STS2, 21, 4)
\ts_lshr_b32 s12, ttmp6, 24
\ts_lshl_b32 s13, s9, 4
\tv_mov_b32 v8, s13
\tv_mov_b32 v4, s9
\tv_mov_b32 v5, s10
\tv_mov_b32 v6, s11
\tv_mov_b32 v7, s12
\tglobal_store_b128 v8, v[4:7], s[2:3]"""
    got = run(code, grid, cluster, strict=True)[:64].reshape(2, 2, 4, 4)
    count = int(np.prod(cluster))
    for z, y, x in np.ndindex(2, 2, 4):
        number, nonzero, rank, last = (int(v) for v in got[z, y, x])
        at = [c % s for c, s in zip((x, y, z), cluster, strict=True)]
        assert number == x + 4 * y + 8 * z
        assert (nonzero > 0) == (count > 1)
        assert rank == at[0] + cluster[0] * (at[1] + cluster[1] * at[2])
        assert last == count - 1


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("mask", [0, 1, 2, 3])
def test_a_copy_for_several_workgroups(mask, seed):
    """Each of two members loads 32 words of its own to a place of its own, for those that the mask names."""
    code = f"""{START}
\tv_mov_b32 v4, -1
\tds_store_b32 v1, v4
\tds_store_b32 v1, v4 offset:128
\ts_wait_dscnt 0x0
{MEET.format(label="before")}
\ts_lshl_b32 s24, s20, 7
\tv_add_nc_u32 v5, s24, v1
\ts_lshl_b32 s25, s22, 7
\tv_add_nc_u32 v6, s25, v1
\ts_mov_b32 m0, {mask}
\tcluster_load_async_to_lds_b32 v6, v5, s[2:3]
\ts_wait_asynccnt 0x0
{MEET.format(label="after")}
\tds_load_b32 v7, v1
\tds_load_b32 v8, v1 offset:128
\ts_wait_dscnt 0x0
\ts_lshl_b32 s23, s20, 8
\tv_add_nc_u32 v5, s23, v1
\tglobal_store_b32 v5, v7, s[2:3] offset:4096
\tglobal_store_b32 v5, v8, s[2:3] offset:4224"""
    got = run(code, (4,), (2,), strict=True, seed=seed)[1024:1280].reshape(4, 2, 32)
    nothing = np.full(32, 0xFFFFFFFF, np.uint32)
    for group in range(4):
        for sender in range(2):
            arrives = bool(mask >> group % 2 & 1) if mask else sender == group % 2
            words = np.arange(32, dtype=np.uint32) + 32 * (group - group % 2 + sender)
            np.testing.assert_array_equal(got[group, sender], words if arrives else nothing)


TILE = """s_mov_b32 s8, 1
\ts_mov_b32 s9, 0
\ts_mov_b32 s10, s2
\ts_or_b32 s11, s3, 0x80000000
\ts_mov_b32 s12, 0x2000{mask}
\ts_mov_b32 s13, 0x00200000
\ts_mov_b32 s14, 0x00010000
\ts_mov_b32 s15, 0x00200000
\ts_mov_b32 s16, 1
\ts_mov_b32 s17, 32
\ts_mov_b32 s18, 0
\ts_mov_b32 s19, 0"""


def test_a_tile_for_several_workgroups():
    """Only rank 1 loads the tile, for both."""
    code = f"""{START}
{TILE.format(mask=3)}
\ts_cmp_eq_u32 s22, 1
\ts_cbranch_scc0 others
\ttensor_load_to_lds s[8:11], s[12:19]
\ts_wait_tensorcnt 0x0
others:
{MEET.format(label="after")}
\tds_load_b32 v4, v1
\ts_wait_dscnt 0x0
{STORE}"""
    got = run(code, (4,), (2,), strict=True)[1024 : 1024 + 128].reshape(4, 32)
    np.testing.assert_array_equal(got, np.tile(np.arange(32, dtype=np.uint32), (4, 1)))


def test_a_tile_for_several_that_arrives_at_a_barrier():
    code = f"{START}\n{TILE.format(mask=3)}\n\ts_bitset1_b32 s12, 18\n\ttensor_load_to_lds s[8:11], s[12:19]"
    with pytest.raises(UnknownInstructionError, match="multicast"):
        run(code, (2,), (2,))


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_the_barrier_orders_workgroups(seed):
    """Rank 0 stores behind the barrier what rank 1 wrote before it; one wave of each waits for all."""
    code = f"""{START}
\ts_cmp_eq_u32 s22, 1
\ts_cbranch_scc0 meet
\tv_mov_b32 v3, 0
\tv_mov_b32 v4, 77
\tglobal_store_b32 v3, v4, s[2:3] offset:2048 scope:SCOPE_SYS
\ts_wait_storecnt 0x0
meet:
\ts_barrier_signal -1
\ts_barrier_wait -1
\ts_bfe_u32 s24, ttmp8, 0x50019
\ts_cbranch_scc1 rest
\ts_barrier_signal -3
\ts_barrier_wait -3
rest:
\ts_barrier_signal -1
\ts_barrier_wait -1
\tv_mov_b32 v3, 0
\tglobal_load_b32 v4, v3, s[2:3] offset:2048 scope:SCOPE_SYS
\ts_wait_loadcnt 0x0
\ts_lshl_b32 s23, s20, 8
\tv_add_nc_u32 v5, s23, v1
\tglobal_store_b32 v5, v4, s[2:3] offset:4096"""
    got = run(code, (2,), (2,), threads=64, seed=seed)[1024 : 1024 + 128]
    assert (got == 77).all()


@pytest.mark.parametrize("strict", [False, True])
def test_a_barrier_that_one_member_never_signals(strict):
    code = f"""{START}
\ts_cmp_eq_u32 s22, 1
\ts_cbranch_scc1 meet
\ts_barrier_signal -3
meet:
\ts_barrier_wait -3"""
    with pytest.raises(DeadlockError, match="cluster's barrier"):
        run(code, (2,), (2,), strict=strict)


def test_the_barrier_without_a_cluster_does_nothing():
    code = f"{START}\n\ts_barrier_wait -3\n\tv_mov_b32 v4, 5\n{STORE}"
    assert (run(code, (1,), (1,))[1024:1056] == 5).all()


@pytest.mark.parametrize("gpu", ["gfx1201", "gfx1250"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_wave_is_the_first(seed, gpu):
    """Of four waves one sees SCC, each time."""
    code = f"""{START}
\ts_mov_b32 s26, 0
\ts_mov_b32 s27, 3
again:
\ts_barrier_signal_isfirst -1
\ts_cselect_b32 s25, 1, 0
\ts_barrier_wait -1
\ts_add_co_i32 s26, s26, s25
\ts_sub_co_i32 s27, s27, 1
\ts_cmp_lg_u32 s27, 0
\ts_cbranch_scc1 again
\tv_mov_b32 v4, s26
\tv_mov_b32 v5, 0
\tv_cmp_eq_u32 vcc_lo, 0, v9
\ts_and_b32 exec_lo, exec_lo, vcc_lo
\tglobal_atomic_add_u32 v5, v4, s[2:3]"""
    assert run(code, (1,), (1,), threads=128, seed=seed, strict=True, gpu=gpu)[0] == 3


@pytest.mark.parametrize(("grid", "cluster", "gpu"), [((3,), (2,), "gfx1250"), ((2,), (2,), "gfx1201")])
def test_refusals(grid, cluster, gpu):
    with pytest.raises(ArgumentError, match="cluster"):
        run("s_nop 0", grid, cluster, gpu=gpu)
    with pytest.raises(ArgumentError, match="1 to 16"):
        run("s_nop 0", (32,), (32,))


# Each of two waves copies twice in code that is its own: wave w its words 32 w + l to bytes 128 w and 256 + 128 w.
TURNS = """\ts_bfe_u32 s24, ttmp8, 0x50019
\tv_lshlrev_b32 v6, 2, v0
\tv_add_nc_u32 v7, 0x100, v6
\ts_cmp_lg_u32 s24, 0
\ts_cbranch_scc1 a
\tglobal_load_async_to_lds_b32 v6, v6, s[2:3]
a:
\ts_cmp_lg_u32 s24, 1
\ts_cbranch_scc1 b
\tglobal_load_async_to_lds_b32 v6, v6, s[2:3]
b:
\ts_cmp_lg_u32 s24, 0
\ts_cbranch_scc1 c
\tglobal_load_async_to_lds_b32 v7, v6, s[2:3]
c:
\ts_cmp_lg_u32 s24, 1
\ts_cbranch_scc1 d
\tglobal_load_async_to_lds_b32 v7, v6, s[2:3]
d:
\ts_wait_asynccnt 0x1
\ts_barrier_signal -1
\ts_barrier_wait -1
\tv_xor_b32 v8, 0x80, v6
\tds_load_b32 v4, v8 offset:{place}
\ts_wait_dscnt 0x0
\ts_wait_asynccnt 0x0
\tglobal_store_b32 v6, v4, s[2:3] offset:4096"""


def test_a_wave_waits_for_its_own_copies():
    """What the other wave copied meanwhile does not count; each reads what the other's first copy brought."""
    got = run(f"{START}\n{TURNS.format(place=0)}", (1,), (1,), threads=64, strict=True)[1024:1088]
    np.testing.assert_array_equal(got, np.arange(64, dtype=np.uint32) ^ 32)
    with pytest.raises(HazardError, match="asynccnt"):
        run(f"{START}\n{TURNS.format(place=256)}", (1,), (1,), threads=64, strict=True)


@triton.jit
def add_kernel(a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(a_ptr + at, mask=at < n) + tl.load(b_ptr + at, mask=at < n), mask=at < n)


@pytest.mark.parametrize("ctas", [1, 2, 4])
def test_a_program_of_several_workgroups(ctas):
    """Triton's `num_ctas` makes each program a cluster."""
    torch = pytest.importorskip("torch")
    a, b, out = torch.randn(3000), torch.randn(3000), torch.full((3000,), torch.nan)
    with laneloom.emulated("gfx1250", strict=True) as gpu:
        add_kernel[(3,)](a, b, out, 3000, BLOCK=1024, num_ctas=ctas)
    assert torch.equal(out, a + b)
    assert gpu.launches[-1].grid == (3 * ctas, 1, 1)


def test_the_command_takes_the_cluster_of_the_file(tmp_path):
    """Each workgroup stores the size of its cluster, less one."""
    code = f"{START}\n\ts_lshr_b32 s23, ttmp6, 24\n\tv_mov_b32 v4, s23\n{STORE}"
    metadata = """\t.amdgpu_metadata
---
amdhsa.kernels:
  - .args:
      - .offset: 0
        .size: 8
        .value_kind: global_buffer
    .cluster_dims:
      - {first}
      - 1
      - 1
    .kernarg_segment_size: 8
    .max_flat_workgroup_size: 32
    .name: k
...
\t.end_amdgpu_metadata
"""
    saved = tmp_path / "out.npy"
    for first, asked, want in ((2, [], 1), (4, [], 3), (1024, [], 0), (1024, ["--cluster", "2,1"], 1)):
        file = tmp_path / "k.s"
        file.write_text(KERNEL.format(code="\t" + code) + metadata.format(first=first))
        command = ["run", str(file), "--gpu", "gfx1250", "--grid", "4", "--arg", f"u32:2048:zeros -> {saved}", *asked]
        result = CliRunner().invoke(app, command, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        first_words = np.load(saved)[1024::32]
        np.testing.assert_array_equal(first_words[0 : 4 : want + 1], want)
