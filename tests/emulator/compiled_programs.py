"""Random C programs for clang, for the GPU and for this machine: the same text, so one says what the other has to give.

Integers of 8 to 64 bits, fp16, fp32 and fp64, sums, products, quotients, shifts, saturation, overflow, packed pairs,
bytes, arrays indexed at run time, tables, loops, switches, structs by value, functions that are called or inlined.
Nothing here is undefined in C: what might be (a shift too far, a conversion out of range) is guarded. Of a thousand
programs LLVM 19 compiles a few wrongly, all of them right at -O0: look at its code before you blame the emulator.
"""

from __future__ import annotations

import random

INTEGERS = {"i8": 8, "u8": 8, "i16": 16, "u16": 16, "i32": 32, "u32": 32, "i64": 64, "u64": 64}
FLOATS = ("f16", "f32", "f64")
INPUTS = 6
MOST_OUTPUTS = 24
_TABLES = ("u32", "u64", "i16", "u8", "f32")

HEAD = """
typedef signed char i8; typedef unsigned char u8; typedef short i16; typedef unsigned short u16;
typedef int i32; typedef unsigned u32; typedef long long i64; typedef unsigned long long u64;
typedef _Float16 f16; typedef float f32; typedef double f64;
typedef u16 u16x2 __attribute__((ext_vector_type(2))); typedef i16 i16x2 __attribute__((ext_vector_type(2)));
typedef f16 f16x2 __attribute__((ext_vector_type(2))); typedef u8 u8x4 __attribute__((ext_vector_type(4)));
#define CAST(T, x) ({ T _r; __builtin_memcpy(&_r, &(x), sizeof _r); _r; })
static inline u64 bits_f16(f16 x) { if (x != x) return 0x7e00; return CAST(u16, x); }
static inline u64 bits_f32(f32 x) { if (x != x) return 0x7fc00000; return CAST(u32, x); }
static inline u64 bits_f64(f64 x) { if (x != x) return 0x7ff8000000000000ull; return CAST(u64, x); }
static inline f16 make_f16(u64 v) { u16 w = v; f16 x = CAST(f16, w); return x != x ? (f16)__builtin_nanf("") : x; }
static inline f32 make_f32(u64 v) { u32 w = v; f32 x = CAST(f32, w); return x != x ? __builtin_nanf("") : x; }
static inline f64 make_f64(u64 v) { f64 x = CAST(f64, v); return x != x ? __builtin_nan("") : x; }
#define PAIR(T, a, b, result) \\
  ({ u32 _a = (a), _b = (b); T _p = CAST(T, _a), _q = CAST(T, _b), _made = result; CAST(u32, _made); })
#define FMA_f32(a, b, c) __builtin_fmaf(a, b, c)
#define FMA_f64(a, b, c) __builtin_fma(a, b, c)
#define CALLED static __attribute__((noinline))
struct Given { i8 a; i16 b; f32 c; u64 d; u8 e; };
#ifdef __AMDGCN__
#define FMA_f16(a, b, c) __builtin_elementwise_fma((f16)(a), (f16)(b), (f16)(c))
// LLVM 19 takes an unsigned division of sign-extended small numbers for one of 24 bits: hide where they come from.
#define HIDDEN(x) ({ __typeof__(x) _o = (x); __asm__("" : "+v"(_o)); _o; })
#else
#define FMA_f16(a, b, c) ((f16)__builtin_fma((f64)(f16)(a), (f64)(f16)(b), (f64)(f16)(c)))
#define HIDDEN(x) (x)
#endif
"""
TAIL = """
#ifdef __AMDGCN__
__attribute__((amdgpu_kernel)) void program(POINTER u64* out, POINTER const u64* in, struct Given s, i32 n) {
  i32 i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  if (i < n) body((u64*)out + i * OUTPUTS, (const u64*)in + i * INPUTS, s, i);
}
#else
void program(u64* out, const u64* in, struct Given s, i32 n) {
  for (i32 i = 0; i < n; i++) body(out + i * OUTPUTS, in + i * INPUTS, s, i);
}
#endif
"""

# A result of type {t}, its unsigned type {u}, {b} bits; every {x} is another expression of the type, {n} one of u32.
_ANY_INTEGER = """
({u}){x} + ({u}){x} | ({u}){x} - ({u}){x} | {x} & {x} | {x} ^ {x} | ~{x}
({u}){x} << ({x} & {last}) | {x} >> ({x} & {last})
({u}){x} / (({u}){x} | 1) | ({u}){x} % (({u}){x} | 1) | __builtin_bitreverse{b}({x}) | {c} ? {x} : {x}
({{ {t} _x = {x}, _y = {x}; _y == 0 || _y == ({t})-1 ? _x : ({t})(_x / _y); }})
({{ {t} _x = {x}, _y = {x}; _y == 0 || _y == ({t})-1 ? _x : ({t})(_x % _y); }})
__builtin_popcountll(({u}){x}) | ({{ {u} _x = {x}; _x ? __builtin_clzll(_x) : 64; }})
({{ {u} _x = {x}; _x ? __builtin_ctzll(_x) : {b}; }}) | __builtin_rotateleft{b}({x}, {x})
__builtin_elementwise_max(({t}){x}, ({t}){x}) | __builtin_elementwise_min(({t}){x}, ({t}){x})
__builtin_elementwise_add_sat(({t}){x}, ({t}){x}) | __builtin_elementwise_sub_sat(({t}){x}, ({t}){x})
({{ {t} _r; int _o = __builtin_add_overflow({x}, {x}, &_r); _o ? ({t})(_r ^ 1) : _r; }})
({{ {t} _r; int _o = __builtin_sub_overflow({x}, {x}, &_r); _o ? ({t})(_r ^ 1) : _r; }})
({{ {t} _r; int _o = __builtin_mul_overflow({x}, {x}, &_r); _o ? ({t})(_r ^ 1) : _r; }})
"""
_WIDE_INTEGER = """
({u}){x} * ({u}){x} | __builtin_bswap{b}({x})
({{ {u} _a = {x}, _b = {x}; u32 _n = {n} & {last}; _n ? (_a << _n) | (_b >> ({b} - _n)) : _a; }})
"""
_WORD = """
((u64)(u32){n} * (u32){n}) >> 32 | ((i64)(i32){n} * (i32){n}) >> 32 | ({n} & 0xffffff) * ({n} & 0xffffff) + {n}
({n} >> ({n} & 31)) & ((1u << ({n} & 31)) - 1) | ({{ u32 _m = {n}; ({n} & _m) | ({n} & ~_m); }})
({n} << 3) + {n} | ({n} + {n}) << 7 | ({n} | {n}) | {n} | {n} ^ {n} ^ {n} | {n} + {n} + {n}
PAIR(u8x4, {n}, {n}, __builtin_shufflevector(_p, _q, {four})) | PAIR(u16x2, {n}, {n}, _p {op} _q)
PAIR(i16x2, {n}, {n}, __builtin_elementwise_{sat}(_p, _q)) | PAIR(i16x2, {n}, {n}, _p >> (_q & (i16x2)15))
({{ u32 _w = PAIR(f16x2, {n}, {n}, _p {op} _q); f16x2 _s = CAST(f16x2, _w); bits_f16(_s.x) | bits_f16(_s.y) << 16; }})
({{ u32 _a = {n}, _b = {n}, _s = {n}; for (int k = 0; k < 32; k += 8) _s += (_a >> k & 255) * (_b >> k & 255); _s; }})
"""
_DOUBLE_WORD = """
(u64)(((unsigned __int128)(u64){x} * (u64){x}) >> 64) | (i64)(((__int128)(i64){x} * (i64){x}) >> 64)
"""
_FLOAT = """
{x} + {x} | {x} - {x} | {x} * {x} | {x} / {x} | -{x} | {x} * {x} + {x} | {c} ? {x} : {x}
__builtin_elementwise_abs(({t}){x})
FMA_{t}({x}, {x}, {x}) | __builtin_elementwise_floor(({t}){x}) | __builtin_elementwise_ceil(({t}){x})
__builtin_elementwise_trunc(({t}){x}) | __builtin_elementwise_rint(({t}){x}) | __builtin_elementwise_roundeven(({t}){x})
__builtin_elementwise_min(({t}){x}, ({t}){x}) + ({t})0 | __builtin_elementwise_max(({t}){x}, ({t}){x}) + ({t})0
__builtin_elementwise_copysign(({t}){x}, ({{ {t} _y = {x}; _y != _y ? ({t})1 : _y; }}))
({{ {t} _x = {x}, _y = {x}; _x < _y ? _x : _y; }}) | make_{t}((u64){n})
"""
_WIDE_FLOAT = "__builtin_sqrt{suffix}({x}) | __builtin_ldexp{suffix}({x}, (i32){n} % 40)"


def _templates(text: str) -> list[str]:
    # A bar with a blank on each side parts them, but for C's own, which stands inside brackets.
    found = []
    for line in text.strip().splitlines():
        part, depth = "", 0
        for word in line.split(" "):
            if word == "|" and depth == 0:
                found.append(part.strip())
                part = ""
                continue
            depth += word.count("(") - word.count(")")
            part += word + " "
        found.append(part.strip())
    return [t for t in found if t]


ANY, WIDE, WORD, DOUBLE = (_templates(t) for t in (_ANY_INTEGER, _WIDE_INTEGER, _WORD, _DOUBLE_WORD))
FLOAT, WIDE_FLOAT = _templates(_FLOAT), _templates(_WIDE_FLOAT)


class Program:
    """One program: `text`, which OUTPUTS numbers of 64 bits it makes of INPUTS for each lane."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.types = [*INTEGERS, *FLOATS]
        if self.random.random() < 0.3:
            self.types = self.random.sample(self.types, 4)
        self.variables: list[tuple[str, str]] = []
        self.functions: list[tuple[str, str, list[str]]] = []
        self.lines: list[str] = []
        self.names = 0
        self.fixed = 0  #: variables at the front that are never assigned
        functions = [self._function() for _ in range(self.random.randrange(4))]
        body = self._body()
        self.text = HEAD + self._tables() + "".join(functions) + body + TAIL

    def _tables(self) -> str:
        lines = ""
        for t in _TABLES:
            const = "const " if self.random.random() < 0.7 else ""
            values = ", ".join(str(self.random.randrange(100)) for _ in range(8))
            lines += f"static {const}{t} table_{t}[8] = {{{values}}};\n"
        return lines

    def _function(self) -> str:
        given = [self._type() for _ in range(self.random.randrange(1, 6))]
        result, name = self._type(), f"f{len(self.functions)}"
        self.variables, self.lines = [(f"p{k}", t) for k, t in enumerate(given)], []
        self.fixed = len(given)
        for _ in range(self.random.randrange(1, 5)):
            self._statement(1, 0)
        kind = "CALLED" if self.random.random() < 0.7 else "static"
        head = f"{kind} {result} {name}({', '.join(f'{t} p{k}' for k, t in enumerate(given))})"
        text = f"{head} {{\n  struct Given s = {{1, 2, 3, 4, 5}};\n" + "\n".join(self.lines)
        text += f"\n  return {self._expression(result, 2)};\n}}\n"
        self.functions.append((name, result, given))
        return text

    def _body(self) -> str:
        self.variables, self.lines = [("i", "i32")], []
        for k in range(INPUTS):
            t = self._type()
            value = f"make_{t}(in[{k}])" if t in FLOATS else f"({t})in[{k}]"
            self.lines.append(f"  {t} x{k} = {value};")
            self.variables.append((f"x{k}", t))
        self.fixed = len(self.variables)
        for _ in range(self.random.randrange(8, 20)):
            self._statement(1, 0)
        shown = self.variables[-MOST_OUTPUTS:]
        for k, (v, t) in enumerate(shown):
            self.lines.append(f"  out[{k}] = {f'bits_{t}({v})' if t in FLOATS else f'(u64){v}'};")
        self.outputs = len(shown)
        head = "static void body(u64* out, const u64* in, struct Given s, i32 i) {\n"
        return f"#define OUTPUTS {self.outputs}\n#define INPUTS {INPUTS}\n{head}" + "\n".join(self.lines) + "\n}\n"

    # -- expressions ---------------------------------------------------------------------------------------------------

    def _type(self) -> str:
        return self.random.choice(self.types)

    def _constant(self, t: str) -> str:
        if t == "f16":
            return f"((f16){self.random.choice(['0.5', '1.0', '-2.0', '3.14159', '65504.0', '6e-8', '-0.0', '0.1'])})"
        if t in FLOATS:
            return f"(({t}){self.random.choice(['0.5', '1.0', '-2.0', '1e10', '1e-40', '-0.0', '0.1', '1e38'])})"
        b = INTEGERS[t]
        powers = [1 << self.random.randrange(b), (1 << self.random.randrange(b)) - 1]
        small = [self.random.randrange(70), -self.random.randrange(20), -1]
        value = self.random.choice([*small, self.random.getrandbits(b), *powers])
        return f"(({t}){value & ((1 << b) - 1)}ull)"

    def _converted(self, name: str, old: str, new: str) -> str:
        if old == new:
            return name
        if new in FLOATS or old in INTEGERS:
            return f"(({new}){name})"
        if self.random.random() < 0.3:
            return f"(({new})bits_{old}({name}))"
        b, signed = INTEGERS[new], new[0] == "i"
        low = -(1 << (b - 1)) * 0.999 if signed else -0.9
        high = float(1 << (b - signed)) * 0.999 if b > 16 else float((1 << (b - signed)) - 1)
        return f"(((f64){name} > {low} && (f64){name} < {high}) ? ({new}){name} : ({new})7)"

    def _atom(self, t: str) -> str:
        own = [v for v, kind in self.variables if kind == t]
        if own and self.random.random() < 0.75:
            return self.random.choice(own)
        if self.random.random() < 0.3:
            return self._constant(t)
        return self._converted(*self.random.choice(self.variables), t)

    def _condition(self) -> str:
        t = self._type()
        operator = self.random.choice(["<", "<=", ">", ">=", "==", "!="])
        return f"({self._expression(t, 1)} {operator} {self._expression(t, 1)})"

    def _expression(self, t: str, depth: int) -> str:
        if depth <= 0 or self.random.random() < 0.12:
            return self._atom(t)
        fitting = [f for f in self.functions if f[1] == t]
        if fitting and self.random.random() < 0.1:
            name, _, given = self.random.choice(fitting)
            return f"{name}({', '.join(self._expression(kind, depth - 2) for kind in given)})"
        if t in FLOATS:
            template = self.random.choice(FLOAT + (WIDE_FLOAT if t != "f16" else []))
        else:
            b = INTEGERS[t]
            more = (WIDE if b >= 32 else []) + (WORD if b == 32 else DOUBLE if b == 64 else [])
            template = self.random.choice(ANY + more)
            if b >= 32:
                for operator in ("/", "%"):
                    template = template.replace(f"({{u}}){{x}} {operator} ", f"HIDDEN(({{u}}){{x}}) {operator} ")
                template = template.replace("({t})(_x ", "({t})(HIDDEN(_x) ")
        return f"(({t})({self._filled(template, t, depth)}))"

    def _filled(self, template: str, t: str, depth: int) -> str:
        b = INTEGERS.get(t, 0)
        numbers = {"t": t, "u": f"u{t[1:]}", "b": b, "last": b - 1, "suffix": "f" if t == "f32" else ""}
        out, rest = "", template.replace("{{", "\0").replace("}}", "\1")
        while "{" in rest:
            before, _, rest = rest.partition("{")
            key, _, rest = rest.partition("}")
            out += before
            if key == "x":
                out += self._expression(t, depth - 1)
            elif key == "n":
                out += self._expression("u32", depth - 1)
            elif key == "c":
                out += self._condition()
            elif key == "four":
                out += ", ".join(str(self.random.randrange(8)) for _ in range(4))
            elif key == "op":
                out += self.random.choice("+-*")
            elif key == "sat":
                out += self.random.choice(["add_sat", "sub_sat", "max", "min"])
            else:
                out += str(numbers[key])
        return (out + rest).replace("\0", "{").replace("\1", "}")

    # -- statements ----------------------------------------------------------------------------------------------------

    def _name(self, letter: str) -> str:
        self.names += 1
        return f"{letter}{self.names}"

    def _put(self, indent: int, text: str) -> None:
        self.lines.append("  " * indent + text)

    def _declare(self, indent: int, t: str, value: str) -> None:
        name = self._name("v")
        self._put(indent, f"{t} {name} = {value};")
        self.variables.append((name, t))

    def _statement(self, indent: int, loops: int) -> None:
        kind = self.random.randrange(14)
        if kind < 6:
            t = self._type()
            self._declare(indent, t, self._expression(t, self.random.choice([1, 2, 2, 3])))
        elif kind < 8:
            own = self.variables[self.fixed :]
            if own:
                name, t = self.random.choice(own)
                if name[0] == "v":
                    self._put(indent, f"{name} = {self._expression(t, 2)};")
        elif kind == 8 and indent < 4:
            self._put(indent, f"if ({self._condition()}) {{")
            self._scope(indent, loops)
            self._put(indent, "} else {")
            self._scope(indent, loops)
            self._put(indent, "}")
        elif kind == 9 and loops < 2:
            self._loop(indent, loops)
        elif kind == 10 and indent < 4:
            self._switch(indent, loops)
        elif kind == 11:
            self._array(indent)
        elif kind == 12:
            t = self.random.choice(_TABLES)
            self._declare(indent, t, f"table_{t}[{self._expression('u32', 1)} & 7]")
        else:
            t = self.random.choice(["i32", "u64"])
            self._declare(indent, t, f"({t})(s.a * 3 + s.b + (i64)s.d + s.e)")

    def _scope(self, indent: int, loops: int, most: int = 3) -> None:
        kept = list(self.variables)
        for _ in range(self.random.randint(1, most)):
            self._statement(indent + 1, loops)
        self.variables = kept

    def _loop(self, indent: int, loops: int) -> None:
        name = self._name("c")
        bound = self.random.choice([str(self.random.randrange(1, 6)), f"({self._expression('u32', 1)} & 7)"])
        self._put(indent, f"for (u32 {name} = 0; {name} < {bound}; {name}++) {{")
        self.variables.append((name, "u32"))
        self._scope(indent, loops + 1)
        if self.random.random() < 0.3:
            self._put(indent + 1, f"if ({self._condition()}) {self.random.choice(['break', 'continue'])};")
        self._put(indent, "}")
        self.variables.remove((name, "u32"))

    def _switch(self, indent: int, loops: int) -> None:
        cases = self.random.randrange(3, 9)
        self._put(indent, f"switch ({self._expression('u32', 1)} % {cases + 1}) {{")
        for k in range(cases):
            self._put(indent, f"case {k}: {{")
            self._scope(indent, loops, 1)
            self._put(indent, "}" + (" break;" if self.random.random() < 0.8 else ""))
        self._put(indent, "}")

    def _array(self, indent: int) -> None:
        t, name, size = self._type(), self._name("a"), self.random.choice([4, 8, 16])
        first, place, value, read = self._expression(t, 1), *(self._expression(k, 1) for k in ("u32", t, "u32"))
        step = f"({first} + ({t})_i)" if t in FLOATS else f"((u64){first} + _i)"
        self._put(indent, f"{t} {name}[{size}]; for (u32 _i = 0; _i < {size}; _i++) {name}[_i] = ({t}){step};")
        self._put(indent, f"{name}[{place} & {size - 1}] = {value};")
        self._declare(indent, t, f"{name}[{read} & {size - 1}]")
