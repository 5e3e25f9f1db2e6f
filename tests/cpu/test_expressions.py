"""Integer expressions of assembly against LLVM's assembler."""

import random

import pytest

from laneloom.codegen import versions
from laneloom.isa.elf import read_sections
from laneloom.isa.expressions import value_of

GIVEN = [
    "1<<2+3", "1+2<<3", "6|1*2", "4|1+2", "10-4-3", "7>>1+1", "1^3+4", "5%3*2", "-7/2", "-7%3", "0x10-010", "0b101",
    "!0", "!5", "~1", "1==1", "2>1", "3==3&1", "(2>1)+5", "1||0&&0", "2<>2", "-8>>1", "'A'+1", "- (3 - 5)",
]  # fmt: skip


def assembled(expressions):
    text = "\t.text\n" + "".join(f"\t.quad {e}\n" for e in expressions)
    sections = read_sections(versions.assembler()(text, "gfx1201", ""))
    data = next(s.data for s in sections if s.name == ".text")
    return [int.from_bytes(data[8 * k : 8 * k + 8], "little", signed=True) for k in range(len(expressions))]


def random_expression(rng, depth):
    if depth == 0 or rng.random() < 0.2:
        return str(rng.randrange(1, 60))
    operation = rng.choice(["+", "-", "*", "|", "&", "^", "<", ">", "==", "!=", "<=", ">=", "&&", "||"])
    whole = f"{random_expression(rng, depth - 1)}{operation}{random_expression(rng, depth - 1)}"
    return f"({whole})" if rng.random() < 0.3 else whole


def test_values_are_those_of_llvm():
    rng = random.Random(1)
    expressions = GIVEN + [random_expression(rng, 4) for _ in range(300)]
    assert [value_of(e) for e in expressions] == assembled(expressions)


@pytest.mark.parametrize("text", ["", "v1", "1+", "(1", "1 2", "s[0:1]", "x+1", "1/0", "lgkmcnt(0)"])
def test_what_is_no_expression(text):
    assert value_of(text) is None


def test_symbols():
    assert value_of("x.y*2+_z", {"x.y": 3, "_z": 4}) == 10
