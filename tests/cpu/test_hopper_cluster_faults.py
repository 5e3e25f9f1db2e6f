"""What the CPU model of Hopper's instructions says of kernels and launches that are wrong: why it can be believed."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
from hopper_model import COMPILER
from sampled import sampled, without

torch = pytest.importorskip("torch")

from matmul_model import Model, with_calls  # noqa: E402
from matmul_products import GPU, check, check_groups_of_k, check_groups_of_rows, product, run, small  # noqa: E402

from laneloom.errors import LaneloomError  # noqa: E402
from laneloom.ops.matmul.problem import Epilogue, Matrix  # noqa: E402

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")


@pytest.fixture
def model(tmp_path, monkeypatch):
    return functools.partial(Model, tmp_path, monkeypatch)


@pytest.mark.parametrize(("layout", "what"), [("nt", "illegal instruction"), ("nn", "written outside of C")])
def test_why_tma_does_not_write_rows_that_do_not_fill_16_bytes(model, layout, what):
    """With B along K the last tile begins anywhere; otherwise at 32 bytes, and the row's last piece is not all C's."""
    problem = product(5, 1001, 64, layout, c_pitch=1024)
    config = small(block_n=256)
    assert "TMA" in config.why_invalid(problem, GPU)
    model()
    with pytest.raises(AssertionError, match=what):
        run(problem, config, anyway=True)


def test_the_driver_refuses_pitches_that_16_does_not_divide(model):
    problem = replace(product(5, 40, 64), a=Matrix((0, 0, 68, 1)))
    model()
    with pytest.raises(LaneloomError, match="refuses a tensor map"):
        run(problem, small(), anyway=True)


def test_an_instruction_that_the_model_does_not_know_is_an_error():
    with pytest.raises(AssertionError, match=r"no call for this instruction: bar\.arrive 1;"):
        with_calls('if (x) asm volatile("bar.arrive 1;" ::: "memory");')


def wait(groups):
    return f'asm volatile("wgmma.wait_group.sync.aligned {groups};" ::: "memory");'


#: what is wrong: what stands in the kernel's text, what instead, what is said of it
FAULTS = {
    "the last tile is left out": ("more = item < s.items;", "more = item < s.items - 1;", "wrong"),
    "sums are read before wgmma is done": (wait(0), wait(1), "wgmmas that nobody waits for"),
    "slices are refilled before wgmma is done": (wait(1), "__syncwarp();", "wrong"),
    "staging is written before the copy engine has read it": ("wait_for_reads(lane == 0);\n ", "", "wrong"),
    "a CTA ends before the copy engine has read it": ("wait_for_reads(lane == 0);  //", "//", "a CTA ends before"),
    "the copy engine may see old staging": (
        'if (by_tma) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");', "", "no fence"),
    "loads do not wait for the kernels ahead": (
        "if (!READS_ENDS && work.more) wait_for_predecessor();", "", "kernels ahead"),
    "bytes that never come": ("stage, LOADED_BYTES)", "stage, LOADED_BYTES + 16)", "waits for ever"),
    "the wrong phase": ("(empty + 8 * stage, phase ^ 1)", "(empty + 8 * stage, phase)", "waits for ever"),
}  # fmt: skip


#: the same of tiles that one warpgroup multiplies
FAULTS_OF_OWN_TILES = {
    "slices of the other's tile are taken for this one's": (
        "        wait_barrier(exchanged + 8 * slab, turn ^= 1);\n", "", "wrong|waits for ever"),
    "nobody gives the turn": ("arrive(exchanged + 8 *", "(void)(exchanged + 8 *", "waits for ever"),
    "the other's slices are not passed": ("        if (more) pass();\n", "", "wrong|waits for ever"),
}  # fmt: skip


#: the same of clusters
FAULTS_OF_CLUSTERS = {
    "signals come after a CTA's end": ("SHARERS > 1 && i < STAGES", "false", "a signal to a CTA that has ended"),
    "a neighbour does not get what it shares": ("((1u << CLUSTER_M) - 1) <<", "1u <<", "waits for ever"),
}  # fmt: skip


#: the same of groups of K
FAULTS_OF_GROUPS = {
    "what is behind a group's end stays": (" || slice == ends_within", "", "wrong"),
    "what is in front of its beginning stays": ("slice == begins_within || ", "", "wrong"),
    "the tensor cores may see it": (
        'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  //', "//", "no fence"),
    "an empty group has the sums of the one before": ("K_GROUPED && k_end == 0", "false", "wrong"),
    "boxes begin where groups do": ("16 / ELEMENT_BYTES;", "1;", "6 bytes behind a multiple of 16"),
}  # fmt: skip


#: the same of groups of rows
FAULTS_OF_ROWS = {
    "tiles of 32 groups are forgotten": ("walk.before += __shfl_sync(~0u, behind, 31);", "", "wrong"),
    "columns have the first group's scales": ("(GROUPED ? (i64)tile.inner * s.N : 0) + n", "n", "wrong"),
    "a group has its neighbour's tiles": ("if (lane >= far) behind += others;", "", "wrong"),
}  # fmt: skip


def check_fault(model, fault, problem, config, *rest, check=check, **options):
    there, instead, what = fault

    def change(text):
        assert there in text
        return text.replace(there, instead)

    model(change=change, **options)
    with pytest.raises(AssertionError, match=what):
        check(problem, config, *rest)


#: but what test_hopper_registers_faults.py finds with the same model
OWN = sampled(without(
    FAULTS, "sums are read before wgmma is done", "slices are refilled before wgmma is done",
    "staging is written before the copy engine has read it", "a CTA ends before the copy engine has read it",
    "the copy engine may see old staging",
), every=4)  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_faults_are_seen(model, name):
    check_fault(model, FAULTS[name], product(200, 40, 392), small())


@pytest.mark.parametrize("name", sampled(FAULTS_OF_OWN_TILES, every=4))
def test_faults_of_own_tiles_are_seen(model, name):
    config = small(block_m=128, consumers=2, own_tiles=True, programs=1)
    check_fault(model, FAULTS_OF_OWN_TILES[name], product(500, 72, 392), config)


@pytest.mark.parametrize("name", FAULTS_OF_CLUSTERS)
def test_faults_of_clusters_are_seen(model, name):
    check_fault(model, FAULTS_OF_CLUSTERS[name], product(100, 24, 72), small(cluster_m=2), signal_rounds=3000)


@pytest.mark.parametrize("name", sampled(FAULTS_OF_GROUPS, first=1, every=4))
def test_faults_of_groups_are_seen(model, name):
    problem = product(60, 24, 168, batch=(1, 3), shared="ab")
    check_fault(model, FAULTS_OF_GROUPS[name], problem, small(programs=1), (75, 75, 160), check=check_groups_of_k)


@pytest.mark.parametrize("name", sampled(FAULTS_OF_ROWS, every=4))
def test_faults_of_rows_in_groups_are_seen(model, name):
    ends = [2 * (i // 3) for i in range(40)]
    problem = product(ends[-1], 24, 72, batch=(1, len(ends)), shared="ac")
    if "scales" in name:
        problem = replace(problem, epilogue=Epilogue(scale_a="row", scale_b="column"))
    check_fault(model, FAULTS_OF_ROWS[name], problem, small(programs=16), ends, check=check_groups_of_rows)
