"""Which GPU an assembly runs on: what it names, what is asked for, and code for whole families."""

import pytest

from laneloom.errors import ArgumentError
from laneloom.isa.targets import gpu_of, named_in


def text(target):
    return f'\t.amdgcn_target "amdgcn-amd-amdhsa-{target}"\n\t.text\n'


@pytest.mark.parametrize(
    ("target", "named", "gpu"),
    [
        ("-gfx1151", "gfx1151", "gfx1151"), ("unknown-gfx942:sramecc+:xnack-", "gfx942", "gfx942"),
        ("-gfx90a", "gfx90a", "gfx90a"), ("unknown-gfx9-4-generic", "gfx9-4-generic", "gfx942"),
        ("-gfx11-generic", "gfx11-generic", "gfx1100"), ("-gfx12-generic", "gfx12-generic", "gfx1200"),
        ("unknown-gfx12-5-generic", "gfx12-5-generic", "gfx1250"), ("-gfx1030", "gfx1030", "gfx1030"),
    ],
)  # fmt: skip
def test_what_a_text_names(target, named, gpu):
    assert named_in(text(target)) == named
    assert gpu_of(text(target), None) == gpu


def test_what_is_asked_for():
    assert gpu_of("s_nop 0", "gfx1151") == "gfx1151"
    assert gpu_of("s_nop 0", None) is None
    assert gpu_of(text("-gfx11-generic"), "gfx1151") == "gfx1151"
    assert gpu_of(text("-gfx1201"), "gfx1200") == "gfx1200"
    assert gpu_of(text("-gfx1251"), "gfx1250") == "gfx1250"


@pytest.mark.parametrize(
    ("target", "asked"), [("-gfx1201", "gfx942"), ("-gfx11-generic", "gfx1201"), ("-gfx1201", "gfx1250")]
)
def test_code_of_other_instruction_sets_is_refused(target, asked):
    with pytest.raises(ArgumentError, match=f"the text is code for {target[1:]}, which {asked} does not run"):
        gpu_of(text(target), asked)
