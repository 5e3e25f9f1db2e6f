"""hopper_cluster.cu, hopper_rows.cu, hopper_registers.cu and hopper_weights.cu on hopper_model.h: their text with calls
instead of assembly, launched by the kernels' own modules.

What stands for NVIDIA's driver encodes tensor maps, refuses those that the driver refuses, and runs launches in a
process of their own, so that one that never ends is a failure like others.
"""

from __future__ import annotations

import ast
import ctypes
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from hopper_model import compiled, in_own_process

from laneloom.codegen import cuda_call
from laneloom.codegen.cuda_call import TENSOR_MAP_TYPES, CudaFunction
from laneloom.ops.matmul.kernels import hopper_cluster, hopper_registers, hopper_rows
from laneloom.ops.matmul.tma_operand import ELEMENT_BYTES
from laneloom.ops.quantized_matmul.kernels import hopper_weights

#: instructions, words apart by one blank, and what stands for them; their operands follow, what is written first, and
#: ahead of them the macros that an instruction has in braces here
CALLS = {
    "": "ptx::nothing",
    "mov.u32 %0, %%cluster_ctarank;": "ptx::cluster_rank",
    "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;": "ptx::cluster_meet",
    "{ .reg .pred done; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @done bra DONE; bra AGAIN; "
    "DONE: }": "barrier_wait",
    "mbarrier.init.shared::cta.b64 [%0], %1;": "ptx::init_barrier",
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;": "barrier_expect",
    "mbarrier.arrive.shared::cta.b64 _, [%0];": "barrier_arrive",
    "{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }": "ptx::elect_one",
    "mapa.shared::cluster.u32 %0, %1, %2;": "ptx::in_peer",
    "mbarrier.arrive.shared::cluster.b64 _, [%0];": "ptx::arrive_in_cluster",
    "fence.mbarrier_init.release.cluster;": "ptx::nothing",
    "prefetch.tensormap [%0];": "ptx::nothing",
    "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
    "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;": "ptx::load_box_to_all",
    "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];":
    "ptx::load_box",
    "cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];": "ptx::fetch_box",
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];": "ptx::send",
    "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];": "ptx::store_box",
    "cp.async.bulk.commit_group;": "ptx::commit_stores",
    "cp.async.bulk.wait_group.read 0;": "ptx::wait_for_stores<0>",
    "cp.async.bulk.wait_group.read 1;": "ptx::wait_for_stores<1>",
    "cp.async.bulk.wait_group 0;": "ptx::wait_for_stores<0>",
    "fence.proxy.async.shared::cta;": "ptx::show_to_copy_engine",
    "griddepcontrol.launch_dependents;": "ptx::nothing",
    "griddepcontrol.wait;": "ptx::wait_for_predecessor",
    "wgmma.fence.sync.aligned;": "wgmma_fence",
    "wgmma.commit_group.sync.aligned;": "wgmma_commit",
    "wgmma.wait_group.sync.aligned 0;": "wgmma_wait<0>",
    "wgmma.wait_group.sync.aligned 1;": "wgmma_wait<1>",
    "wgmma.wait_group.sync.aligned %0;": "ptx::wait_for_products",
    "setmaxnreg.dec.sync.aligned.u32 40;": "ptx::nothing",
    "setmaxnreg.inc.sync.aligned.u32 232;": "ptx::nothing",
    "setmaxnreg.dec.sync.aligned.u32 %0;": "ptx::nothing",
    "setmaxnreg.inc.sync.aligned.u32 %0;": "ptx::nothing",
    "setmaxnreg.inc.sync.aligned.u32 152;": "ptx::nothing",
    "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};": "ptx::store_matrices",
    "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};": "ptx::store_turned_matrices",
    "st.shared.v2.b32 [%0], {%1, %2};": "ptx::store_words",
    "cvt.rn.bf16x2.f32 %0, %1, %2;": "ptx::pack_bfloats",
    "cvt.rn.f16x2.f32 %0, %1, %2;": "ptx::pack_halves",
    "cvt.f32.f16 %0, %1;": "ptx::widen_half",
    "max.NaN.f32 %0, %1, %2;": "ptx::larger",
    "ex2.approx.ftz.f32 %0, %1;": "ptx::exp2",
    "ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];": "ptx::load_words",
    "ld.global.v4.u32 {%0, %1, %2, %3}, [%4];": "ptx::load_words",
    "ld.global.v2.u32 {%0, %1}, [%2];": "ptx::load_words",
    "ld.global.u32 %0, [%1];": "ptx::load_words",
    "ld.global.u16 %0, [%1];": "ptx::load_number<u16>",
    "ld.global.u8 %0, [%1];": "ptx::load_number<unsigned char>",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
    "{%0, %1, %2, %3};": "ptx::multiply_warp",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
    "{%0, %1, %2, %3};": "ptx::multiply_warp",
    "cvt.rn.bf16.f32 %0, %1;": "ptx::narrow_to_bfloat",
    "cvt.rn.f16.f32 %0, %1;": "ptx::narrow_to_half",
    "cp.async.bulk.prefetch.L2.global [%0], %1;": "ptx::fetch_line",
    "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.f32 [there], %2; }":
    "ptx::store_at_peer",
    "cp.async.ca.shared.global [%0], [%1], 4;": "ptx::copy_word",
    "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];": "ptx::arrive_with_words",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];": "ptx::load_matrices",
    "ld.volatile.shared.v2.f32 {%0, %1}, [%2];": "ptx::load_shared_pair",
    "barrier.cluster.arrive.relaxed.aligned;": "ptx::cluster_arrive",
    "barrier.cluster.wait.aligned;": "ptx::cluster_wait",
    "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;": "ptx::cluster_meet",
    "barrier.cluster.arrive.relaxed;": "ptx::cluster_arrive",
    "barrier.cluster.wait;": "ptx::cluster_wait",
    "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;": "ptx::cluster_meet",
    "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;": "ptx::expect_more",
    "ld.shared.u32 %0, [%1];": "ptx::load_shared_words",
    "ld.shared.v2.u32 {%0, %1}, [%2];": "ptx::load_shared_words",
    "ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];": "ptx::load_shared_words",
    "st.shared.u32 [%0], %1;": "ptx::store_words",
    "lop3.b32 %0, %1, %2, %3, 0x6A;": "ptx::and_xor",
    "sub.{PAIR} %0, %1, %2;": "ptx::subtract",
    "mul.{PAIR} %0, %1, %2;": "ptx::multiply",
    "fma.rn.{PAIR} %0, %1, %2, %3;": "ptx::multiply_add",
    "prmt.b32 %0, %1, %2, %3;": "ptx::permute",
    "cvt.rn.{PAIR}.f32 %0, %1, %2;": "ptx::pack",
    "cvt.rn.f16x2.e4m3x2 %0, %1;": "ptx::widen_float8s",
}  # fmt: skip
_WGMMA = re.compile(
    r"\{\.reg \.pred p; setp\.ne\.b32 p, %(\d+), 0; "
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.(?:f32|s32)\.(\w+)\.(\w+) "
    r"\{([%\d, ]+)\}, (%\d+|\{[%\d, ]+\}), %(\d+), p(?:, 1, 1)?(?:, ([01]))??(?:, ([01]))?;\}"
)
_BARRIER = re.compile(r"bar\.(sync|arrive) (%\d|\d+), (%\d|\d+);")
DEPTHS = {"bf16": 16, "f16": 16, "tf32": 8, "e4m3": 32, "s8": 32}  #: K of a wgmma of each type that the model has
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|.', re.DOTALL)
_STRING_OR_MACRO = re.compile(r'"(?:[^"\\]|\\.)*"|\w+')
OF_HEADER = ("ELEMENT_BYTES", "SIGNAL_ROUNDS", "CTAS")  #: what matmul_model.h has from here
LAUNCH = """
extern "C" void launch(int grid, int threads, int cluster, int bytes, int late, void **p) {
  const bool fits = threads == THREADS && cluster == %(peers)s && grid %% cluster == 0 && cluster <= CTAS;
  if (!fits) ptx::fail("no launch of this kernel");
  if (%(checked)s) at_each_read = ptx::check_visible;
  ptx::run(grid, threads, cluster, bytes, late, [=] { %(kernel)s; });
}
"""


@dataclass(frozen=True)
class Kernel:
    """What differs between the kernels: the module that launches it, its shared memory, its call."""

    module: ModuleType
    shared: str
    type: str
    peers: str
    call: str
    #: of its text, what the model has to know and no assembly says, and what says it
    writes: tuple[tuple[str, str], ...] = ()


CLUSTER = Kernel(
    hopper_cluster, "extern __shared__ __align__(1024) char shared[];", "char", "PEERS",
    "matmul_hopper_cluster(*(TensorMap *)p[0], *(TensorMap *)p[1], *(TensorMap *)p[2], *(TensorMap *)p[3], "
    "*(TensorMap *)p[4], *(OUT_TYPE **)p[5], *(Sizes *)p[6], *(Terms *)p[7] SCALES_OF_BLOCKS)",
)  # fmt: skip
ROWS = Kernel(
    hopper_rows, "extern __shared__ float memory[];", "float", "CLUSTER",
    "matmul_hopper_rows(*(ELEMENT **)p[0], *(ELEMENT **)p[1], *(OUT_TYPE **)p[2], *(RowsSizes *)p[3])",
)  # fmt: skip
REGISTERS = Kernel(
    hopper_registers, "extern __shared__ __align__(1024) char shared[];", "char", "1",
    "matmul_hopper_registers(*(TensorMap *)p[0], *(TensorMap *)p[1], *(TensorMap *)p[2], *(float **)p[3], "
    "*(Sizes *)p[4], *(int *)p[5])",
    (("uint4 *x", "ptx::Shared<uint4> *x"), ("x = (uint4 *)(slices", "x = (ptx::Shared<uint4> *)(slices"),
     ("uint4 *panel", "ptx::Shared<uint4> *panel"),
     ("*(float *)(panel", "*(ptx::Shared<float> *)(panel"),
     ("*(float2 *)(buffer", "*(ptx::Shared<float2> *)(buffer")),
)  # fmt: skip
WEIGHTS = Kernel(
    hopper_weights, "extern __shared__ __align__(1024) float memory[];", "float", "CLUSTER",
    "matmul_hopper_weights(*(TensorMap *)p[0], *(Rows *)p[1], *(unsigned char **)p[2], *(unsigned char **)p[3], "
    "*(BIAS_TYPE **)p[4], *(OUT_TYPE **)p[5], *(int **)p[6], *(WeightSizes *)p[7])",
    (("u32 a0, u32 a1, u32 a2, u32 a3", "const u32 &a0, const u32 &a1, const u32 &a2, const u32 &a3"),
     ("ptx::multiply_fragments", "ptx::multiply_held"),
     ("const int lane = threadIdx.x % 32;\n    for (; search", "const int lane = threadIdx.x % 32;\n    "
      "ptx::follow_predecessor();\n    for (; search")),
)  # fmt: skip


def _split(text: str) -> list[list[str]]:
    """An asm statement's inside: its sections between colons, each cut at commas; strings and brackets stay whole."""
    sections, depth = [[""]], 0
    for token in _TOKEN.findall(text):
        depth += {"(": 1, ")": -1, "[": 1, "]": -1}.get(token, 0)
        if token == ":" and not depth:
            sections.append([""])
        elif token == "," and not depth:
            sections[-1].append("")
        else:
            sections[-1][-1] += token
    return [[part.strip() for part in section if part.strip()] for section in sections]


def _call(inside: str) -> str:
    (strings,), *operands = _split(inside)
    parts = _STRING_OR_MACRO.findall(strings)
    macros = [x for x in parts if x[0] != '"']
    words = "".join(f"{{{x}}}" if x in macros else ast.literal_eval(x) for x in parts)
    instruction = " ".join(words.split())
    values = [re.fullmatch(r'(?:"[^"]*"|\w+)\s*\((.*)\)', x, re.DOTALL)[1] for part in operands[:2] for x in part]
    name = CALLS.get(instruction)
    if name is not None:
        return f"{name}({', '.join(macros + values)})"
    if barrier := _BARRIER.fullmatch(instruction):
        kind, *numbers = barrier.groups()
        number, threads = (values[int(x[1:])] if x[0] == "%" else x for x in numbers)
        return f"named_{kind}({number}, {threads})"
    wgmma = _WGMMA.fullmatch(instruction)
    assert wgmma, f"matmul_model.py knows no call for this instruction: {instruction}"
    flag, columns, depth, kind_a, kind_b, sums, a, b, a_by_column, b_by_row = wgmma.groups()
    assert DEPTHS.get(kind_a) == int(depth), f"matmul_model.py multiplies {', '.join(DEPTHS)}: {instruction}"
    assert kind_a == kind_b, f"matmul_model.py multiplies equal types: {instruction}"
    count = int(columns) // 2
    assert values[:count] == [f"d[{i}]" for i in range(count)]
    assert sums == ", ".join(f"%{i}" for i in range(count))
    a, b, flag = ([values[int(x)] for x in re.findall(r"\d+", group)] for group in (a, b, flag))
    if len(a) > 1:
        return f"ptx::multiply_fragments<{columns}>(d, {{{', '.join(a)}}}, {b[0]}, {flag[0]}, {b_by_row or 0})"
    return f"multiply_shared<{columns}>(d, {a[0]}, {a_by_column or 0}, {b[0]}, {b_by_row or 0}, {flag[0]})"


def with_calls(text: str) -> str:
    """A CUDA text with a call of the model for each asm statement; one that the model does not know is an error."""
    done, at = [], 0
    code = re.sub(r"//[^\n]*", lambda comment: " " * len(comment[0]), text)
    for statement in re.finditer(r"\b_*asm_*\b\s*(?:volatile\b\s*)?\(", code):
        depth, end = 1, statement.end()
        while depth:
            token = _TOKEN.match(text, end)
            depth += {"(": 1, ")": -1}.get(token[0], 0)
            end = token.end()
        done += [text[at : statement.start()], _call(text[statement.end() : end - 1])]
        at = end
    assert len(re.findall("asm", code)) * 2 == len(done), "an asm statement that matmul_model.py does not find"
    return "".join([*done, text[at:]])


def program(source: str, constants: dict[str, int | str], of: Kernel = CLUSTER) -> str:
    """The kernel's text as a C++ program of the model."""
    text = with_calls(source)
    assert text.count(of.shared) == 1
    name = re.findall(r"\w+(?=\[\];)", of.shared)[0]
    text = text.replace(of.shared, f"{of.type} *const {name} = ({of.type} *)arena;")
    for plain, said in of.writes:
        assert plain in text
        text = text.replace(plain, said)
    kind = re.search(r"wgmma\.mma_async\.\S+\.(?:f32|s32)\.(\w+)\.(\w+) ", source)
    multiplied = kind[1] if kind else "f16" if constants.get("FP16") else "bf16"
    of_type = {"BF16": int(multiplied == "bf16"), "OPERAND_" + multiplied.upper(): 1}
    scales = ", *(Scales *)p[8]" if constants.get("SCALED") else ""
    defines = {"ELEMENT_BYTES": 32 // DEPTHS[multiplied], **constants, **of_type, "SCALES_OF_BLOCKS": scales}
    lines = [f"#define {key} {value}" for key, value in defines.items()]
    of_header = [line for line in lines if line.split()[1] in (*OF_HEADER, *of_type)]
    of_kernel = [line for line in lines if line not in of_header]
    header = Path(__file__).with_name("matmul_model.h")
    # Two consumers write the same zeros over B, one perhaps while the other multiplies.
    checked = int(bool(constants.get("K_GROUPED")) and constants["CONSUMERS"] == 1)
    launch = LAUNCH % {"peers": of.peers, "kernel": of.call, "checked": checked}
    return "\n".join([*of_header, f'#include "{header}"', *of_kernel, "namespace kernel {", text, launch, "}"])


class Model:
    """Stands for NVRTC and the driver where a kernel's module looks for them.

    late: whether wgmma and the copy engine read as late as their waits allow. change: what becomes of the kernel's text
    first. signal_rounds: turns of all threads that a late signal to another CTA takes, for each CTA before its own."""

    def __init__(
        self, folder: Path, monkeypatch, *, late: bool = True, change=lambda text: text, signal_rounds: int = 20,
        of: Kernel = CLUSTER,
    ) -> None:  # fmt: skip
        self.of = of
        self.folder, self.late, self.change = folder, late, change
        self.constants = {"SIGNAL_ROUNDS": signal_rounds, "CTAS": 4}
        self.sizes = {number: ELEMENT_BYTES.get(name, 4) for name, number in TENSOR_MAP_TYPES.items()}
        monkeypatch.setattr(of.module, "compile_cuda", self.compile_cuda)
        monkeypatch.setattr(cuda_call, "driver", lambda: self)

    def compile_cuda(self, source, gpu, *, constants, num_warps, lds_bytes, name) -> CudaFunction:
        text = program(self.change(source), constants | self.constants, self.of)
        folder = self.folder / hashlib.sha256(text.encode()).hexdigest()[:16]
        folder.mkdir(exist_ok=True)
        library = folder / "kernel.so"
        found = ctypes.CDLL(str(library)) if library.exists() else compiled(text, folder, "-Og")
        address = ctypes.cast(found.launch, ctypes.c_void_p).value
        return CudaFunction(name, address, 32 * num_warps, lds_bytes, found)

    def cuTensorMapEncodeTiled(
        self, to, kind, rank, address, sizes, strides, box, steps, interleave, swizzle, promotion, fill
    ) -> int:
        size, address = self.sizes[kind], address.value
        line = {2: 64, 3: 128}.get(swizzle, 0)
        suits = rank == 4 and list(steps) == [1] * 4 and not interleave and not fill
        suits &= address % 16 == 0 and all(stride % 16 == 0 and stride < 1 << 40 for stride in strides)
        suits &= all(1 <= n <= 1 << 32 for n in sizes) and all(1 <= n <= 256 for n in box) and list(box[2:]) == [1, 1]
        suits &= box[0] * size % 16 == 0 and box[0] * size <= line
        words = [address, *sizes, *strides, *box, size, kind == TENSOR_MAP_TYPES["tf32"], line]
        ctypes.memmove(to, (ctypes.c_uint64 * 16)(*words), 128)
        return 0 if suits else 1

    def cuLaunchKernelEx(self, by_config, function, parameters, extra) -> int:
        config = by_config._obj
        attributes = [config.attributes[i] for i in range(config.attribute_count)]
        cluster = next((x.value[0] for x in attributes if x.id == 4), 1)
        launch = ctypes.CFUNCTYPE(None, *[ctypes.c_int] * 5, ctypes.c_void_p)(function.value)
        arguments = config.grid[0], config.block[0], cluster, config.shared_bytes, int(self.late)
        in_own_process(lambda: launch(*arguments, ctypes.addressof(parameters)))
        return 0
