"""The text of the FP32 product that is written in assembly: kernels/sgemm_assembly.py has its idea and its launch."""

from __future__ import annotations

from ...codegen.assembly import Assembly, Operand, Register
from ...gpu import Gpu
from .config_sgemm import AssemblyConfig

TILE, STEP, THREADS = 128, 8, 128
PAD = 4  #: floats after each row of A in LDS: a storing wave's 8 columns of 4 rows are 32 banks
A_ROW, B_ROW = 4 * (TILE + PAD), 4 * TILE  #: bytes of one k in LDS
B_AT = STEP * A_ROW  #: where B's tile begins
LDS_BYTES = B_AT + STEP * B_ROW
LOADS = 8  #: of each operand, 4 bytes per lane and tile
A_LOAD_ROWS = THREADS // STEP  #: rows of A that one load of the workgroup covers
ROWS, COLUMNS = 16, 8  #: of C in a lane: 4 pieces of 4 rows, 16 apart; 2 pieces of 4 columns, 32 apart
ARGUMENTS = (
    ("a", "pointer"), ("b", "pointer"), ("c", "pointer"), ("size_m", "u32"), ("size_n", "u32"), ("size_k", "u32"),
    ("row_a", "u32"), ("row_b", "u32"), ("row_c", "u32"),
)  # fmt: skip
LOAD_STEPS = 4  #: K8: the k-steps at whose beginning the next tile's loads are issued


class SgemmWriter:
    """Writes one variant. `whole` says that the tile divides M, N and K: no clamps, no masks."""

    def __init__(self, config: AssemblyConfig, gpu: Gpu, whole: bool):
        self.config, self.whole = config, whole
        name = f"sgemm_{config.step}" + ("" if whole else "_masked")
        self.asm = Assembly(name, gpu, ARGUMENTS, threads=THREADS, lds_bytes=LDS_BYTES, cu_mode=True)
        self.batched = config.loads == "batched"

    def text(self) -> str:
        """The whole kernel."""
        asm = self.asm
        self.read_arguments()
        self.place_lanes()
        self.take_registers()
        self.point_at_operands()
        self.load_ragged_tile()
        self.store_tile()
        last = asm.new_label()
        asm.emit("s_cmp_eq_u32", self.tiles, 0)
        asm.emit("s_cbranch_scc1", last)
        with asm.loop(self.tiles):
            self.multiply_tile(loading=True)
            asm.comment("every wave has read this tile")
            asm.barrier()
            self.store_tile()
        asm.place(last)
        self.multiply_tile(loading=False)
        self.store_sums()
        asm.place(self.nothing)
        asm.end()
        return asm.text()

    # -- addresses -----------------------------------------------------------------------------------------------------

    def read_arguments(self) -> None:
        """Arguments, and which tile of C is this workgroup's."""
        asm = self.asm
        block, rest = asm.scalar("pointers, M, N", 8), asm.scalar("K, pitches", 4)
        asm.emit("s_load_b256", block, asm.kernarg, 0)
        asm.emit("s_load_b128", rest, asm.kernarg, asm.offset_of("size_k"))
        self.a, self.b, self.c = (block.part(at, 2) for at in (0, 2, 4))
        self.k, self.row_a, self.row_b, self.row_c = (rest[at] for at in range(4))
        self.rows_left, self.columns_left, self.product = block[6], block[7], asm.scalar("product", 2)
        row0, column0 = asm.scalar("row0"), asm.scalar("column0")
        y, shift = self.asm.workgroup_y, self.config.group_m.bit_length() - 1
        if asm.gpu.major == 12:
            asm.emit("s_and_b32", row0, y, 0xFFFF)  # z is in the upper half
            y = row0
        asm.emit("s_lshl_b32", row0, y, 7 + shift)
        asm.emit("s_lshr_b32", column0, asm.workgroup_x, shift)
        if shift:
            asm.comment("neighbours in x share columns: row of tiles y * group + x % group")
            asm.emit("s_and_b32", self.product[0], asm.workgroup_x, self.config.group_m - 1)
            asm.emit("s_lshl_b32", self.product[0], self.product[0], 7)
            asm.emit("s_or_b32", row0, row0, self.product[0])
        asm.emit("s_lshl_b32", column0, column0, 7)
        asm.wait(scalar=True)
        self.nothing = asm.new_label()
        asm.emit("s_cmp_ge_u32", row0, self.rows_left)
        asm.emit("s_cbranch_scc1", self.nothing)
        for base, pitch in ((self.a, self.row_a), (self.c, self.row_c)):
            self.advance_by_product(base, row0, pitch)
        for base in (self.b, self.c):
            self.advance_by_product(base, column0, 4)
        subtract = asm.spell("s_sub_i32")
        asm.emit(subtract, self.rows_left, self.rows_left, row0)
        asm.emit(subtract, self.columns_left, self.columns_left, column0)
        self.tiles = asm.scalar("K-tiles to load")
        asm.emit(subtract, self.tiles, self.k, 1)
        asm.emit("s_lshr_b32", self.tiles, self.tiles, 3)
        asm.free(row0, column0)

    def advance_by_product(self, base: Register, x: Register, y: Operand) -> None:
        """base += x * y, with all 64 bits of the product."""
        asm = self.asm
        asm.emit("s_mul_i32", self.product[0], x, y)
        asm.emit("s_mul_hi_u32", self.product[1], x, y)
        asm.add64(base, base, self.product[0], self.product[1])

    def place_lanes(self) -> None:
        """Where each lane reads and writes LDS: lanes of a wave are 4 rows by 8 columns, waves 2 by 2."""
        asm, thread = self.asm, self.asm.thread
        self.k_lane, self.row_lane = asm.vector("column of A"), asm.vector("row of A")
        self.a_store, self.b_store = asm.vector("A to LDS"), asm.vector("B to LDS")
        self.a_read, self.b_read = asm.vector("A from LDS"), asm.vector("B from LDS")
        asm.emit("v_and_b32", self.k_lane, STEP - 1, thread)
        asm.emit("v_lshrrev_b32", self.row_lane, 3, thread)
        asm.emit("v_mul_u32_u24", self.a_store, A_ROW, self.k_lane)
        asm.emit("v_lshl_add_u32", self.a_store, self.row_lane, 2, self.a_store)
        asm.emit("v_lshlrev_b32", self.b_store, 2, thread)
        asm.emit("v_bfe_u32", self.a_read, thread, 3, 2)
        asm.emit("v_lshlrev_b32", self.a_read, 4, self.a_read)
        asm.emit("v_lshrrev_b32", self.b_read, 6, thread)
        asm.emit("v_lshl_or_b32", self.a_read, self.b_read, 8, self.a_read)
        asm.emit("v_bfe_u32", self.b_read, thread, 5, 1)
        asm.emit("v_lshlrev_b32", self.b_read, 8, self.b_read)
        asm.emit("v_lshl_or_b32", self.b_read, self.k_lane, 4, self.b_read)

    def take_registers(self) -> None:
        """Sums in rows of 4 registers, so that a row is one store; fragments in their banks; the tile on its way."""
        asm = self.asm
        self.sums = [[asm.vector("sums", 4, bank=0) for _ in range(COLUMNS // 4)] for _ in range(ROWS)]
        self.a_pairs = [asm.vector("A fragment", 2, bank=2) for _ in range(ROWS // 2)]
        self.b_pairs = [asm.vector("B fragment", 2, bank=0) for _ in range(COLUMNS // 2)]
        self.loaded = [asm.vector("tile on its way") for _ in range(2 * LOADS)]

    def point_at_operands(self) -> None:
        """What the loads of a tile need: (lane offset, scalar base) when batched, else a 64-bit address per lane."""
        asm = self.asm
        lane_a = self.lane_offsets_a()
        lane_b = asm.vector("lane offset in B")
        if self.whole:
            asm.emit("v_lshlrev_b32", lane_b, 2, asm.thread)
        else:
            last = asm.scalar("last column")
            asm.emit(asm.spell("s_add_i32"), last, self.columns_left, -1)
            asm.emit("v_min_u32", lane_b, last, asm.thread)
            asm.emit("v_lshlrev_b32", lane_b, 2, lane_b)
        self.step_b = asm.scalar("bytes to the next tile of B")
        asm.emit("s_lshl_b32", self.step_b, self.row_b, 3)
        if self.batched:
            bases_a = self.bases("base in A", self.a, self.row_a, A_LOAD_ROWS) if self.whole else [self.a] * LOADS
            bases_b = self.bases("base in B", self.b, self.row_b, 1)
            self.sources = [*zip(lane_a, bases_a, strict=True), *((lane_b, base) for base in bases_b)]
            return
        self.address = asm.vector("address", 2)
        self.walk_a, self.walk_b = asm.vector("address in A", 2), asm.vector("address in B", 2)
        for walk, base, lane in ((self.walk_a, self.a, lane_a[0] if self.whole else 0), (self.walk_b, self.b, lane_b)):
            asm.emit("v_mov_b32", walk[0], base[0])
            asm.emit("v_mov_b32", walk[1], base[1])
            asm.add64_vector(walk, walk, lane)
        rows_b = self.multiples("row of B", self.row_b, 1)
        rows_a = self.multiples("rows of A", self.row_a, A_LOAD_ROWS) if self.whole else lane_a
        self.sources = [*((step, self.walk_a) for step in rows_a), *((step, self.walk_b) for step in rows_b)]

    def lane_offsets_a(self) -> list[Register]:
        """Bytes from the tile's first element to what a lane loads, for each load; one if no row is clamped."""
        asm = self.asm
        offsets = [asm.vector("lane offset in A") for _ in range(1 if self.whole else LOADS)]
        last = asm.scalar("last row")
        if not self.whole:
            asm.emit(asm.spell("s_add_i32"), last, self.rows_left, -1)
        for load, offset in enumerate(offsets):
            if self.whole:
                asm.emit("v_mul_lo_u32", offset, self.row_lane, self.row_a)
            else:
                asm.emit("v_add_nc_u32", offset, A_LOAD_ROWS * load, self.row_lane)
                asm.emit("v_min_u32", offset, last, offset)
                asm.emit("v_mul_lo_u32", offset, offset, self.row_a)
            asm.emit("v_lshl_add_u32", offset, self.k_lane, 2, offset)
        return offsets * LOADS if self.whole else offsets

    def multiples(self, name: str, pitch: Register, rows: int) -> list[Operand]:
        """0, 1, 2, ... times `rows` rows, in scalar registers."""
        steps: list[Operand] = [0]
        for load in range(1, LOADS):
            step = self.asm.scalar(name)
            self.asm.emit("s_mul_i32", step, pitch, rows * load)
            steps.append(step)
        return steps

    def bases(self, name: str, base: Register, pitch: Register, rows: int) -> list[Register]:
        """Scalar addresses of a tile's loads, `rows` rows apart."""
        asm, found = self.asm, [base]
        asm.emit("s_mul_i32", self.product[0], pitch, rows)
        for _ in range(1, LOADS):
            found.append(asm.scalar(name, 2))
            asm.add64(found[-1], found[-2], self.product[0])
        return found

    # -- one K-tile ----------------------------------------------------------------------------------------------------

    def load(self, number: int) -> None:
        """One of the 16 loads of a tile."""
        asm, (first, second) = self.asm, self.sources[number]
        if self.batched:
            asm.emit("global_load_b32", self.loaded[number], first, second)
        elif first == 0:
            asm.emit("global_load_b32", self.loaded[number], second, "off")
        else:
            asm.add64_vector(self.address, second, first)
            asm.emit("global_load_b32", self.loaded[number], self.address, "off")

    def go_on(self, step_a: Operand, step_b: Operand, loads: range) -> None:
        """What these loads read from is one K-tile further on."""
        asm = self.asm
        if self.batched:
            moved = {self.sources[number][1]: step_a if number < LOADS else step_b for number in loads}
            if not self.whole and LOADS - 1 not in loads:
                moved.pop(self.a, None)  # all loads of A share one base, which goes on after the last of them
            for base, step in moved.items():
                asm.add64(base, base, step)
        else:
            asm.add64_vector(self.walk_a, self.walk_a, step_a)
            asm.add64_vector(self.walk_b, self.walk_b, step_b)

    def load_ragged_tile(self) -> None:
        """The first 1 to 8 columns of A and rows of B, the rest zeros; full tiles follow."""
        asm = self.asm
        if self.whole:
            for number in range(2 * LOADS):
                self.load(number)
            self.go_on(4 * STEP, self.step_b, range(2 * LOADS))
        else:
            first, mask = asm.scalar("columns of the first tile"), asm.scalar("mask")
            asm.emit("s_lshl_b32", self.product[0], self.tiles, 3)
            asm.emit(asm.spell("s_sub_i32"), first, self.k, self.product[0])
            asm.clear(self.loaded)
            asm.emit("v_cmp_gt_u32", "vcc_lo", first, self.k_lane)
            asm.settle()
            asm.emit("s_mov_b32", mask, "vcc_lo")
            for number in range(2 * LOADS):
                if number >= LOADS:
                    asm.emit("s_cmp_gt_u32", first, number - LOADS)
                    asm.emit("s_cselect_b32", mask, -1, 0)
                if not self.batched and self.sources[number][0] != 0:  # for all lanes: vcc takes the carry
                    asm.add64_vector(self.address, self.sources[number][1], self.sources[number][0])
                asm.emit("s_mov_b32", "exec_lo", mask)
                if self.batched:
                    self.load(number)
                else:
                    at = self.sources[number][1] if self.sources[number][0] == 0 else self.address
                    asm.emit("global_load_b32", self.loaded[number], at, "off")
                asm.emit("s_mov_b32", "exec_lo", -1)
            asm.emit("s_lshl_b32", self.product[0], first, 2)
            asm.emit("s_mul_i32", self.product[1], first, self.row_b)
            self.go_on(self.product[0], self.product[1], range(2 * LOADS))
            asm.free(first, mask)
        self.in_flight = list(range(2 * LOADS))
        asm.clear([register for row in self.sums for quad in row for register in (quad[i] for i in range(4))])

    def store_tile(self) -> None:
        """The loaded tile to LDS, four loads at a time as they arrive, and a barrier: it is complete."""
        asm = self.asm
        for place, number in enumerate(self.in_flight):
            if place % 4 == 0:
                asm.wait(loads=len(self.in_flight) - place - 4)
            if number < LOADS:
                asm.emit("ds_store_b32", self.a_store, self.loaded[number], modifiers=_at(4 * A_LOAD_ROWS * number))
            else:
                at = B_AT + B_ROW * (number - LOADS)
                asm.emit("ds_store_b32", self.b_store, self.loaded[number], modifiers=_at(at))
        asm.wait(lds=0)
        asm.barrier()

    def multiply_tile(self, *, loading: bool) -> None:
        """8 k-steps; the next tile's loads at their beginning, or spread over them."""
        asm = self.asm
        if loading and not self.batched:
            for number in range(2 * LOADS):
                self.load(number)
            self.go_on(4 * STEP, self.step_b, range(2 * LOADS))
        self.in_flight = list(range(2 * LOADS))
        if not self.config.unroll:
            steps, a_at, b_at = asm.scalar("k-steps"), asm.vector("A now"), asm.vector("B now")
            asm.emit("v_mov_b32", a_at, self.a_read)
            asm.emit("v_mov_b32", b_at, self.b_read)
            asm.emit("s_mov_b32", steps, STEP)
            with asm.loop(steps):
                self.read_fragments(a_at, b_at, 0)
                asm.emit("v_add_nc_u32", a_at, A_ROW, a_at)
                asm.emit("v_add_nc_u32", b_at, B_ROW, b_at)
                asm.wait(lds=0)
                for pair in range(ROWS // 2):
                    self.multiply_rows(pair)
            asm.free(steps, a_at, b_at)
            return
        each = LOADS // LOAD_STEPS
        for step in range(STEP):
            if loading and self.batched and step < LOAD_STEPS:
                for operand in (0, LOADS):
                    numbers = range(operand + step * each, operand + (step + 1) * each)
                    for number in numbers:
                        self.load(number)
                    self.go_on(4 * STEP, self.step_b, numbers)
            self.read_fragments(self.a_read, self.b_read, step)
            for pair in range(ROWS // 2):
                asm.wait(lds=ROWS // 2 - 1 - pair)
                if self.config.priority and pair == 0:
                    asm.emit("s_setprio", 1)
                self.multiply_rows(pair)
            if self.config.priority:
                asm.emit("s_setprio", 0)
        if loading and self.batched:
            self.in_flight = [
                o + step * each + i for step in range(LOAD_STEPS) for o in (0, LOADS) for i in range(each)
            ]

    def read_fragments(self, a_at: Register, b_at: Register, step: int) -> None:
        """One k-step: 8 columns of B, then 16 rows of A, two at a time, for only two banks may take them."""
        asm = self.asm
        for q, pair in enumerate(self.b_pairs):
            asm.emit("ds_load_b64", pair, b_at, modifiers=_at(B_AT + B_ROW * step + 128 * (q // 2) + 8 * (q % 2)))
        for p, pair in enumerate(self.a_pairs):
            asm.emit("ds_load_b64", pair, a_at, modifiers=_at(A_ROW * step + 64 * (p // 2) + 8 * (p % 2)))

    def multiply_rows(self, pair: int) -> None:
        """Two rows by 8 columns: 8 pairs. A pair takes a square of 2 x 2 sums by its diagonals."""
        a = self.a_pairs[pair]
        upper, lower = self.sums[2 * pair], self.sums[2 * pair + 1]
        for q, b in enumerate(self.b_pairs):
            for left, right in ((0, 1), (1, 0)):
                x = upper[q // 2][2 * (q % 2) + left]
                y = lower[q // 2][2 * (q % 2) + right]
                self.asm.dual(("v_dual_fmac_f32", x, a[0], b[left]), ("v_dual_fmac_f32", y, a[1], b[right]))

    # -- the result ----------------------------------------------------------------------------------------------------

    def store_sums(self) -> None:
        """C, 16 bytes per lane and store; without whole vectors to the right, one column at a time under its mask."""
        asm = self.asm
        asm.free(*self.a_pairs, *self.b_pairs, *self.loaded)
        offset, row = asm.vector("lane offset in C"), asm.vector("row of C")
        jump = asm.scalar("13 rows")
        asm.emit("v_lshrrev_b32", row, 2, self.a_read)
        asm.emit("v_mul_lo_u32", offset, row, self.row_c)
        asm.emit("v_add_nc_u32", offset, offset, self.b_read)
        asm.emit("s_mul_i32", jump, self.row_c, 13)
        if self.whole:
            self.store_rows(offset, row, jump, [])
            return
        narrow, done = asm.new_label(), self.nothing
        asm.emit("s_cmp_lt_u32", self.columns_left, TILE)
        asm.emit("s_cbranch_scc1", narrow)
        self.store_rows(offset, row, jump, [])
        asm.emit("s_branch", done)
        asm.place(narrow)
        column = asm.vector("column of C")
        masks = []
        for number in range(COLUMNS):
            masks.append(asm.scalar("columns inside"))
            asm.emit("v_lshrrev_b32", column, 2, self.b_read)
            asm.emit("v_add_nc_u32", column, 32 * (number // 4) + number % 4, column)
            asm.emit("v_cmp_gt_u32", masks[-1], self.columns_left, column)
        self.store_rows(offset, row, jump, masks)

    def store_rows(self, offset: Register, row: Register, jump: Register, masks: list[Register]) -> None:
        """All 16 rows of a lane."""
        asm = self.asm
        for number in range(ROWS):
            if number:
                asm.emit("v_add_nc_u32", offset, jump if number % 4 == 0 else self.row_c, offset)
                if not self.whole:
                    asm.emit("v_add_nc_u32", row, 13 if number % 4 == 0 else 1, row)
            if not self.whole:
                asm.emit("v_cmp_gt_u32", "vcc_lo", self.rows_left, row)
                asm.settle()
                if not masks:
                    asm.emit("s_mov_b32", "exec_lo", "vcc_lo")
            for piece in range(COLUMNS // 4):
                quad = self.sums[number][piece]
                if not masks:
                    asm.emit("global_store_b128", offset, quad, self.c, modifiers=_at(128 * piece))
                    continue
                for i in range(4):
                    asm.emit("s_and_b32", "exec_lo", "vcc_lo", masks[4 * piece + i])
                    asm.emit("global_store_b32", offset, quad[i], self.c, modifiers=_at(128 * piece + 4 * i))
            if not self.whole:
                asm.emit("s_mov_b32", "exec_lo", -1)


def _at(offset: int) -> str:
    return f"offset:{offset}" if offset else ""
