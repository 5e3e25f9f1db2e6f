"""Older spellings, of gfx9 or accepted for gfx11 and gfx12; inline assembly reaches the listing as it was written."""

from __future__ import annotations

from .alu import SCALAR, VECTOR

_VECTOR = {
    "v_add_i32": "v_add_nc_i32", "v_sub_i32": "v_sub_nc_i32", "v_add_u32": "v_add_nc_u32",
    "v_sub_u32": "v_sub_nc_u32", "v_subrev_u32": "v_subrev_nc_u32", "v_ffbh_i32": "v_cls_i32",
    "v_ffbh_u32": "v_clz_i32_u32", "v_ffbl_b32": "v_ctz_i32_b32", "v_cvt_flr_i32_f32": "v_cvt_floor_i32_f32",
    "v_cvt_rpi_i32_f32": "v_cvt_nearest_i32_f32", "v_cvt_pkrtz_f16_f32": "v_cvt_pk_rtz_f16_f32",
    "v_mul_legacy_f32": "v_mul_dx9_zero_f32", "v_fma_legacy_f32": "v_fma_dx9_zero_f32",
    "v_fmac_legacy_f32": "v_fmac_dx9_zero_f32", "v_dot2c_f32_f16": "v_dot2acc_f32_f16",
    "v_dot2c_f32_bf16": "v_dot2acc_f32_bf16", "v_fma_legacy_f16": "v_fma_f16", "v_mad_legacy_u16": "v_mad_u16",
    "v_mad_legacy_i16": "v_mad_i16", "v_div_fixup_legacy_f16": "v_div_fixup_f16",
    **{f"v_cvt_pknorm_{t}": f"v_cvt_pk_norm_{t}" for t in ("i16_f16", "i16_f32", "u16_f16", "u16_f32")},
    **{f"v_{c}_tru_{t}": f"v_{c}_t_{t}" for c in ("cmp", "cmpx") for t in ("f16", "f32", "f64")},
}  # fmt: skip
_SCALAR = {
    "s_ff1_i32_b32": "s_ctz_i32_b32", "s_ff1_i32_b64": "s_ctz_i32_b64", "s_flbit_i32": "s_cls_i32",
    "s_flbit_i32_i64": "s_cls_i32_i64", "s_flbit_i32_b32": "s_clz_i32_u32", "s_flbit_i32_b64": "s_clz_i32_u64",
    "s_andn2_b32": "s_and_not1_b32", "s_andn2_b64": "s_and_not1_b64", "s_orn2_b32": "s_or_not1_b32",
    "s_orn2_b64": "s_or_not1_b64",
    **{f"s_{o}n{k}_saveexec_{b}": f"s_{o}_not{k - 1}_saveexec_{b}" for o in ("and", "or") for k in (1, 2)
       for b in ("b32", "b64")},
    **{f"s_andn{k}_wrexec_{b}": f"s_and_not{k - 1}_wrexec_{b}" for k in (1, 2) for b in ("b32", "b64")},
}  # fmt: skip
ALIASES: dict[str, str] = {**_VECTOR, **_SCALAR}


def declare_aliases() -> None:
    """Give every older spelling the meaning of today's."""
    for alias, name in _VECTOR.items():
        VECTOR[alias] = VECTOR[name]
    for alias, name in _SCALAR.items():
        SCALAR[alias] = SCALAR[name]
