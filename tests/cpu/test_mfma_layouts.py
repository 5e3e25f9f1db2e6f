"""The layouts of the MFMA schedule: every element once, wide accesses, no bank conflicts in LDS."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from laneloom.gpu import get_gpu
from laneloom.isa.lds_banks import access_cycles, banks_of
from laneloom.ops.matmul.config_mfma import SWIZZLED_ROWS, TILES, MfmaConfig
from laneloom.ops.matmul.launch_wmma import load_along
from laneloom.ops.matmul.layouts_mfma import reads_vectors, shared_layout, turned_layout

WAVE = 64
#: GPU, and the bytes of an element in memory and in LDS: 8-bit floats become bf16 on gfx90a
SIZES = [("gfx90a", 1, 2)] + [(gpu, s, s) for gpu, s in product(("gfx90a", "gfx942", "gfx950"), (1, 2, 4, 8))]


def expanded(bases: list[list[int]]) -> np.ndarray:
    """[index, (row, k)] of a linear layout's bases."""
    index = np.arange(1 << len(bases))
    out = np.zeros((len(index), 2), np.int64)
    for bit, basis in enumerate(bases):
        out[index >> bit & 1 == 1] ^= np.array(basis)
    return out


def held(layout) -> np.ndarray:
    """[register, lane, wave, (row, k)]."""
    registers, lanes, waves = (expanded(b) for b in (layout.reg_bases, layout.lane_bases, layout.warp_bases))
    return registers[:, None, None] ^ lanes[None, :, None] ^ waves[None, None]


def byte_addresses(rows: int, config: MfmaConfig, size: int, gpu) -> np.ndarray:
    """Of [row, k] in LDS."""
    where = np.zeros((rows, config.block_k), np.int64)
    places = expanded(shared_layout(rows, config, size, gpu).offset_bases)
    where[places[:, 0], places[:, 1]] = size * np.arange(len(places))
    return where


def conflicts(addresses: np.ndarray, width: int, gpu, *, load: bool = False) -> int:
    """Extra clocks of an access of `width` bytes a lane, from [wave, lane]."""
    assert (addresses % width == 0).all()
    return int(access_cycles(addresses, width, banks=banks_of(gpu), load=load)[1].sum())


def tiles(size: int) -> list[MfmaConfig]:
    """The planned tiles with rows of each number of bytes that is swizzled."""
    sides = [(config.block_m, config.num_warps) for config, _ in TILES]
    return [
        MfmaConfig(block_m=side, block_n=side, block_k=row // size, num_warps=warps)
        for (side, warps), row in product(sides, SWIZZLED_ROWS)
        if size < 8 or side <= 64
    ]


@pytest.mark.parametrize(("gpu", "stored", "size"), SIZES)
def test_turned(gpu, stored, size):
    """On the way to LDS of an operand that is contiguous along its rows."""
    gpu = get_gpu(gpu)
    for config in tiles(size):
        rows = config.block_m
        how = (rows, config, stored, size, gpu)
        loaded, layout = turned_layout(*how), turned_layout(*how, reorder=True)
        assert sorted(loaded.reg_bases) == sorted(layout.reg_bases)
        assert (loaded.lane_bases, loaded.warp_bases) == (layout.lane_bases, layout.warp_bases)
        places = held(layout)
        assert len(np.unique(places.reshape(-1, 2), axis=0)) == rows * config.block_k == places.size // 2
        vector = 1
        while [vector, 0] in loaded.reg_bases:
            assert loaded.reg_bases[vector.bit_length() - 1] == [vector, 0]
            vector *= 2
        assert vector * stored == 16 or rows < 128 or config.block_k * size < 128
        width = 1
        while width * size < 16 and [0, width] in layout.reg_bases:
            width *= 2
        assert width * size >= 4
        where = byte_addresses(rows, config, size, gpu)
        for register in range(0, len(places), width):
            run = where[places[register : register + width, ..., 0], places[register : register + width, ..., 1]]
            assert (np.diff(run, axis=0) == size).all()
            assert conflicts(run[0].T, width * size, gpu) == 0, (config.text, width * size)


@pytest.mark.parametrize(("gpu", "stored", "size"), SIZES)
def test_along_k_and_fragments(gpu, stored, size):
    """Stores of an operand that is contiguous along K, 16 bytes a lane, and the reads of fragments."""
    gpu = get_gpu(gpu)
    vector = 16 // size
    for config in tiles(size):
        rows = config.block_m
        assert reads_vectors(config, size, gpu)
        where = byte_addresses(rows, config, size, gpu)
        assert len(np.unique(where)) == rows * config.block_k
        load = load_along(rows, config, True, 16 // stored, WAVE)
        elements, lanes = load.size_per_thread[1], load.threads_per_warp
        row, k = np.divmod(np.arange(WAVE), lanes[1])
        for step in range(0, elements, vector):
            first = where[row, k * elements + step][None]
            width = min(16, elements * size)
            assert conflicts(first, width, gpu) == 0
        # lane l of a fragment: row l % 16, the 16 bytes number l / 16 of 64
        lane = np.arange(WAVE)
        for top, left in product(range(0, rows, 16), range(0, config.block_k, 4 * vector)):
            columns = left + vector * (lane // 16)[:, None] + np.arange(vector)
            run = where[(top + lane % 16)[:, None], columns]
            assert (np.diff(run, axis=1) == size).all()
            assert conflicts(run[:, 0][None], 16, gpu, load=True) == 0
