"""What the workgroups of a whole launch synchronize by: global wave sync, and the words of a cooperative launch."""

import numpy as np
import pytest

from laneloom.emulator.global_sync import GlobalWaveSync
from laneloom.emulator.launch import launch
from laneloom.emulator.memory import AccessFault, GlobalMemory, Region
from laneloom.emulator.program import Program
from laneloom.errors import DeadlockError

# s2: the workgroup's number; s[4:5]: an array of a word for each; v1: the byte of the own word, v2: of the next one's.
KERNEL = """
k:
\ts_load_dwordx2 s[4:5], s[0:1], 0x0
\ts_waitcnt lgkmcnt(0)
\ts_lshl_b32 s6, s2, 2
\ts_add_i32 s7, s6, 4
\ts_cmp_lt_u32 s2, {last}
\ts_cselect_b32 s7, s7, 0
\tv_mov_b32 v0, {last}
\tv_mov_b32 v1, s6
\tv_mov_b32 v2, s7
\tv_mov_b32 v3, s2
\ts_mov_b32 m0, 0
\ts_mov_b32 exec_lo, 1
{code}
\ts_endpgm
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 16
\t\t.amdhsa_next_free_sgpr 32
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_system_sgpr_workgroup_id_x 1
\t\t{wide}
\t.end_amdhsa_kernel
"""
STORE = "\tglobal_store_dword v1, v3, s[4:5]\n\ts_waitcnt vmcnt(0)\n"
MEET = "\tds_gws_barrier v0 {offset}gds\n\ts_waitcnt lgkmcnt(0)\n"


def run(code, gpu, groups, *, strict=False, seed=0, metadata=""):
    words = np.zeros(groups, np.uint32)
    narrow = not gpu.startswith("gfx9")
    text = KERNEL.format(code=code, last=groups - 1, wide=".amdhsa_wavefront_size32 1" if narrow else "")
    if narrow:
        text = text.replace("dwordx2", "b64").replace("dword", "b32")
        text = text.replace("s_waitcnt vmcnt(0)", "s_waitcnt vmcnt(0)\n\ts_waitcnt_vscnt null, 0x0")
    program = Program(text + metadata, gpu, strict=strict)
    region = Region("words", words.ctypes.data, words.nbytes, words)
    launch(
        program, [groups], words.ctypes.data.to_bytes(8, "little"), workgroup_size=32, regions=[region], seed=seed
    )
    return words


@pytest.mark.parametrize("gpu", ["gfx90a", "gfx1100"])
@pytest.mark.parametrize("seed", [0, 1])
def test_workgroups_of_several_batches_meet(gpu, seed):
    """Each hands its number on, three times, to the one before; a barrier is as it was for its next use."""
    meet = MEET.format(offset="")
    step = f"{STORE}{meet}\tglobal_load_dword v3, v2, s[4:5]\n\ts_waitcnt vmcnt(0)\n{meet}"
    got = run(3 * step + STORE, gpu, 700, strict=bool(seed), seed=seed)
    assert (got == (np.arange(700) + 3) % 700).all()


@pytest.mark.parametrize("gpu", ["gfx908", "gfx942", "gfx950", "gfx1151"])
def test_a_barrier_that_the_code_initializes(gpu):
    """Its number is the sum of the instruction's and M0's; a launch finds that of 0 set for all of its workgroups."""
    code = f"""\ts_mov_b32 m0, 0x30000
\ts_cmp_lg_u32 s2, 0
\ts_cbranch_scc1 .Lnot_first
\tds_gws_init v0 offset:2 gds
\ts_waitcnt lgkmcnt(0)
.Lnot_first:
\ts_mov_b32 m0, 0
{MEET.format(offset="")}{STORE}\ts_mov_b32 m0, 0x10000
{MEET.format(offset="offset:4 ")}\tglobal_load_dword v3, v2, s[4:5]
\ts_waitcnt vmcnt(0)
{MEET.format(offset="offset:4 ")}{STORE}"""
    assert run(code, gpu, 5, strict=True).tolist() == [1, 2, 3, 4, 0]
    with pytest.raises(DeadlockError, match="waits for ever at a barrier or semaphore of the launch"):
        run(code.replace("offset:4", "offset:5"), gpu, 5)


@pytest.mark.parametrize("gpu", ["gfx90a", "gfx1100"])
def test_semaphores(gpu):
    """Workgroups queue for a semaphore; the last one lets one, then three, then the rest pass."""
    code = f"""\ts_cmp_lg_u32 s2, {{last}}
\ts_cbranch_scc0 .Llast
\tds_gws_sema_p offset:1 gds
\ts_waitcnt lgkmcnt(0)
\tv_mov_b32 v4, 1
\tv_mov_b32 v5, 0
\tglobal_atomic_add v3, v5, v4, s[4:5] offset:36 glc
\ts_waitcnt vmcnt(0)
\tv_add_u32 v3, 1, v3
{STORE}\ts_endpgm
.Llast:
\tv_mov_b32 v0, 3
\tds_gws_sema_v offset:1 gds
\tds_gws_sema_br v0 offset:1 gds
\tds_gws_sema_release_all offset:1 gds
""".replace("{last}", "9")
    if gpu == "gfx1100":
        code = code.replace("atomic_add", "atomic_add_u32").replace("v_add_u32", "v_add_nc_u32")
    got = run(code, gpu, 10)
    assert got.tolist() == [*range(1, 10), 9]
    with pytest.raises(DeadlockError, match="semaphore"):
        run(code.replace("\tds_gws_sema_release_all offset:1 gds\n", ""), gpu, 10)


METADATA = """
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .name: k
    .symbol: k.kd
    .args:
      - .offset: 0
        .size: 8
        .value_kind: global_buffer
      - .offset: 8
        .size: 8
        .value_kind: hidden_multigrid_sync_arg
    .kernarg_segment_size: 16
...
\t.end_amdgpu_metadata
"""


def test_the_words_of_a_cooperative_launch():
    """Libraries count in the first at byte 32, and find how many workgroups there are at byte 40."""
    code = f"""\ts_load_dwordx2 s[8:9], s[0:1], 0x8
\ts_waitcnt lgkmcnt(0)
\ts_load_dword s10, s[8:9], 0x28
\tv_mov_b32 v5, 32
\tv_mov_b32 v4, 1
\tglobal_atomic_add v5, v4, s[8:9]
.Lagain:
\tglobal_load_dword v3, v5, s[8:9]
\ts_waitcnt vmcnt(0) lgkmcnt(0)
\tv_readfirstlane_b32 s11, v3
\ts_cmp_lg_u32 s11, s10
\ts_cbranch_scc1 .Lagain
{STORE}"""
    assert (run(code, "gfx942", 600, metadata=METADATA) == 600).all()


def test_a_wrong_address_is_told_by_the_arguments():
    """The words of a launch lie in every launch's memory, and nobody passed them."""
    sync = GlobalWaveSync(1)
    memory = GlobalMemory([Region("x", sync.address - (1 << 20), 64), sync.region])
    memory.sync = sync
    with pytest.raises(AccessFault, match="bytes past the end of argument 'x'"):
        memory.check(np.array([[sync.address - 64]]), 4, None)


def test_what_a_launch_brings_is_blamed_only_beside_it():
    """Small arrays lie among argument block and packet, which a kernel that runs off an array did not mean."""
    block = np.zeros(1 << 16, np.uint8)
    start = block.ctypes.data
    memory = GlobalMemory([Region("x", start, 64), Region("dispatch packet", start + 8192, 64, ours=True)])
    with pytest.raises(AccessFault, match="6084 bytes past the end of argument 'x' "):
        memory.check(np.array([[start + 6144]]), 4, None)
    with pytest.raises(AccessFault, match="4 bytes past the end of 'dispatch packet' "):
        memory.check(np.array([[start + 8192 + 64]]), 4, None)
    alone = GlobalMemory([Region("dispatch packet", start + 8192, 64, ours=True)])
    with pytest.raises(AccessFault, match="this kernel has no memory arguments"):
        alone.check(np.array([[start]]), 4, None)
