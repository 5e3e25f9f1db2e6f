// What hopper_weights.cu reads of a weight: its values as pairs of 16-bit floats, its scales and zeros.
// VALUES: 0 int4, 1 uint4, 2 fp4 (E2M1), 3 int8, 4 fp8 (E4M3). SCALES: 0 FP32, 1 FP16, 2 BF16, 3 E8M0, 4 E4M3.
// Source: PTX ISA, `lop3`, `cvt`; OCP Microscaling Formats, E2M1 and E8M0.

#define SLICE 128                // of K
#define LINE (SLICE * BITS / 8)  // bytes of a slice of a row of W

#if FP16
#define PAIR "f16x2"
#define ONE_OF_UNITS 0x6400  // 1024: the last bit is worth 1
#else
#define PAIR "bf16x2"
#define ONE_OF_UNITS 0x4300  // 128
#endif
#define BOTH(x) ((u32)(x) * 0x10001u)
#define ZERO_OF_INTS (ONE_OF_UNITS | (VALUES == 0 ? 8 : 0))  // what an integer of 4 bits that is 0 is raised to

__device__ __forceinline__ u32 read_word(u32 from) {
    u32 x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from));
    return x;
}

__device__ __forceinline__ void read_words(u32 (&x)[1], u32 from) { x[0] = read_word(from); }
__device__ __forceinline__ void read_words(u32 (&x)[2], u32 from) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(from));
}
__device__ __forceinline__ void read_words(u32 (&x)[4], u32 from) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from));
}

__device__ __forceinline__ u32 minus(u32 x, u32 y) {
    u32 z;
    asm("sub." PAIR " %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}

__device__ __forceinline__ u32 times(u32 x, u32 y) {
    u32 z;
    asm("mul." PAIR " %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}

__device__ __forceinline__ u32 pair_of(float low, float high) {
    u32 z;
    asm("cvt.rn." PAIR ".f32 %0, %1, %2;" : "=r"(z) : "f"(high), "f"(low));
    return z;
}

__device__ __forceinline__ u32 times_plus(u32 x, u32 y, u32 z) {
    u32 sum;
    asm("fma.rn." PAIR " %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(y), "r"(z));
    return sum;
}

// What values of a group become 16-bit floats by: a pair that they are multiplied by, one that is added.
struct OfGroup {
    u32 factor, offset;
};

// zero: of ZEROS, a pair. factor: of FOLD the scale, of CARRIED a power of two, as a pair.
__device__ __forceinline__ OfGroup of_group(u32 zero, u32 factor) {
#if VALUES == 2 && X_BY_TMA  // of bytes that floats_of_4 makes
    if (FOLD) return {factor, 0};
    const u32 each = BOTH(FP16 ? 0x3800 : 0x4180), all = BOTH(FP16 ? 0xE08C : 0xC1B0);  // 1/2, 16; -582, -22
    return CARRIED ? OfGroup{times(each, factor), times(all, factor)} : OfGroup{each, all};
#elif CARRIED && BITS == 4
    return {factor, times(ZEROS ? zero ^ 0x80008000u : BOTH(ZERO_OF_INTS | 0x8000), factor)};
#else
    return {factor, zero};
#endif
}

#if VALUES == 2 && X_BY_TMA
#define ALL(x) ((u32)(x) * 0x01010101u)

// For each nibble of `chosen` the byte of a and b that it numbers; with its highest bit set, that byte's sign eight times.
__device__ __forceinline__ u32 look_up(u32 a, u32 b, u32 chosen) {
    u32 y;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(chosen));
    return y;
}

// Four values v of E2M1, in the last 16 bits, as floats; FOLD: times the scale and 1/16, which is finite and exact for
// every scale of E8M0. v becomes the last byte of a float that grows with it: of bf16 1.375 + v / 16, of fp16
// 1164 + 2 v. Positive ones are looked up in the first table, which has the bytes inverted, negative ones in the second;
// each gives the other's nothing, or all ones.
__device__ __forceinline__ void floats_of_4(u32 &low, u32 &high, u32 bits, const OfGroup &of) {
    const u32 positive = FP16 ? look_up(0x70717273, 0x676B6D6F, bits) : look_up(0x43474B4F, 0x1F2F373F, bits);
    bits ^= 0x88888888u;
    const u32 negative = FP16 ? look_up(0x898A8B8C, 0x80848688, bits) : look_up(0xA4A8ACB0, 0x809098A0, bits);
    const u32 codes = positive ^ negative, upper = ALL(FP16 ? 0x64 : 0x3F);
    const u32 least = FOLD ? times(of.factor, BOTH(0xBFB0)) : of.offset;  // -1.375
    low = times_plus(__byte_perm(codes, upper, 0x4140), of.factor, least);
    high = times_plus(__byte_perm(codes, upper, 0x4342), of.factor, least);
}
#elif BITS == 4
// Two values of 4 bits as a pair of floats. `bits`: the lower one's are the last four of its half and so are the other's;
// of fp4 they are the first. Integers come to stand where those of 128 (1024) count ones, so that a subtraction, which is
// exact, leaves the value; a zero comes off too. FOLD: times the scale, and 1/4.
__device__ __forceinline__ u32 pair_of_4(u32 bits, const OfGroup &of) {
#if VALUES == 2  // sign, two bits of exponent, one of mantissa
    const u32 small = (bits & 0x80008000u) | (FP16 ? bits >> 3 & 0x0E000E00u : bits >> 6 & 0x01C001C0u);
    // 2^14, 2^126: what the exponents' biases differ by; 2^124 ahead of a scale, so that all products are finite
    const u32 value = times(small, BOTH(FP16 ? 0x7400 : FOLD ? 0x7D80 : 0x7E80));
    return FOLD ? times(value, of.factor) : value;
#else
    // (bits & mask) ^ number: of int4 the sign's bit is turned, which adds 8
    u32 raised;
    asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(raised)
        : "r"(bits), "n"(0x000F000F), "n"(BOTH(ZERO_OF_INTS)));
    if (CARRIED && !ZEROS) return times_plus(raised, of.factor, of.offset);
    const u32 value = minus(raised, BOTH(ZERO_OF_INTS));
    return CARRIED ? times_plus(value, of.factor, of.offset) : ZEROS ? minus(value, of.offset) : value;
#endif
}
#endif

// The bytes `at` and `at` + 1 of a word.
__device__ __forceinline__ u32 pair_of_8(u32 word, int at) {
#if VALUES == 4
    u32 halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((u16)(word >> 8 * at)));
#if FP16
    return halves;
#else
    fp16 low = {(u16)halves}, high = {(u16)(halves >> 16)};
    return pair_of(as_float(low), as_float(high));
#endif
#else
    const u32 raised = word ^ 0x80808080u;  // 128 more, as unsigned bytes
#if FP16
    return minus(__byte_perm(raised, 0x64646464u, at ? 0x4342 : 0x4140), BOTH(0x6480));
#else
    const float low = __uint_as_float(__byte_perm(raised, 0x4B000000u, 0x7440 + at));  // 2^23 and the byte
    const float high = __uint_as_float(__byte_perm(raised, 0x4B000000u, 0x7441 + at));
    return pair_of(low - 8388736.0f, high - 8388736.0f);
#endif
#endif
}

// Where a chunk of 16 bytes of a row lies: TMA's swizzles of 64 and of 128 bytes.
__device__ __forceinline__ u32 place_w(int row, int chunk) {
    return row * LINE + ((BITS == 4 ? chunk ^ (row >> 1 & 3) : chunk ^ (row & 7)) << 4);
}

// Values of row n as pairs, two of them for each of COUNT steps of 16 from `step` on, of lane t of 4; of_w: where the slice
// lies. Of two steps the first is even.
template <int COUNT>
__device__ __forceinline__ void floats(u32 (&pairs)[2 * COUNT], u32 of_w, int n, int step, int t, const OfGroup &of) {
    const int chunk = BITS == 4 ? step / 2 : step & ~1, first = BITS == 4 || !X_BY_TMA ? step % 2 * 2 : 0;
#if BITS == 4 && X_BY_TMA  // neighbours as wgmma wants them: byte t of each word
    u32 words[2 * COUNT];
    read_words(words, of_w + place_w(n, chunk) + first * 4);
#if VALUES == 2
#pragma unroll
    for (int i = 0; i < 2 * COUNT; i += 2)
        floats_of_4(pairs[i], pairs[i + 1], __byte_perm(words[i], words[i + 1], 0x40 + 0x11 * t), of);
#else
    const u32 pick = 0x4400 + 0x1111 * t;  // to each half's two bytes, of each of two words
#pragma unroll
    for (int i = 0; i < 2 * COUNT; ++i) pairs[i] = pair_of_4(__byte_perm(words[i], words[i] >> 4, pick), of);
#endif
#elif BITS == 4  // of eight neighbours i and i + 4
    const u32 word = read_word(of_w + place_w(n, chunk) + t * 4);
#pragma unroll
    for (int i = 0; i < 2 * COUNT; ++i)
        pairs[i] = pair_of_4(VALUES == 2 ? word << (12 - 4 * (first + i)) : word >> 4 * (first + i), of);
#elif X_BY_TMA  // two neighbours of each half of 16
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const u32 at = of_w + place_w(n, step + i) + t / 2 * 4;
        const u32 word = __byte_perm(read_word(at), read_word(at + 8), t % 2 ? 0x7632 : 0x5410);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const u32 pair = pair_of_8(word, 2 * half);
            pairs[2 * i + half] = CARRIED ? times(pair, of.factor) : pair;
        }
    }
#else  // eight neighbours
    u32 words[COUNT];
    read_words(words, of_w + place_w(n, chunk + t / 2) + t % 2 * 8 + first * 2);
#pragma unroll
    for (int i = 0; i < 2 * COUNT; ++i) pairs[i] = pair_of_8(words[i / 2], i % 2 * 2);
#endif
}

// Of eight elements of X, those that threads bring, what the weight's pair `i` is multiplied by: of 4 bits i and i + 4, else
// two neighbours.
__device__ __forceinline__ u32 ordered(const uint4 &x, int i) {
#if BITS == 4
    return i < 2 ? __byte_perm(x.x, x.z, i ? 0x7632 : 0x5410) : __byte_perm(x.y, x.w, i == 3 ? 0x7632 : 0x5410);
#else
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
#endif
}

// A number of BYTES bytes, not before the kernels ahead have ended. Scales of neighbouring groups stay in the L1.
template <int BYTES>
__device__ __forceinline__ u32 load_number(const unsigned char *from) {
    u32 x;
    if (BYTES == 1) asm volatile("ld.global.u8 %0, [%1];" : "=r"(x) : "l"(from));
    else if (BYTES == 2) asm volatile("ld.global.u16 %0, [%1];" : "=r"(x) : "l"(from));
    else asm volatile("ld.global.u32 %0, [%1];" : "=r"(x) : "l"(from));
    return x;
}

__device__ __forceinline__ float scale_of(u32 bits) {
#if SCALES == 0
    return __uint_as_float(bits);
#elif SCALES == 1
    return as_float(fp16{(u16)bits});
#elif SCALES == 2
    return as_float(bf16{(u16)bits});
#elif SCALES == 3
    return __uint_as_float(bits == 255 ? 0x7FC00000u : bits ? bits << 23 : 0x00400000u);
#else
    u32 halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((u16)bits));
    return as_float(fp16{(u16)halves});
#endif
}

// A scale as `unit` times a power of two, which is returned as a pair and by which all values of W are exact in 16 bits,
// so that `unit` is between 1 and 2 or, of a scale that is very small or large or not finite, what is left. Of 0 the
// unit stays.
__device__ __forceinline__ u32 split(float scale, float &unit) {
    const int exponent = min(max(__float_as_uint(scale) >> 23 & 255, FP16 ? 113u : 17u), FP16 ? 132u : 227u);
    if (scale == 0) return 0;
    unit = scale * __uint_as_float(254 - exponent << 23);
    return BOTH(FP16 ? exponent - 112 << 10 : exponent << 7);
}

// An E8M0 scale as two of bf16, which has its exponents.
__device__ __forceinline__ u32 folded(u32 bits) {
    return BOTH(bits == 255 ? 0x7FC0u : bits ? bits << 7 : 0x0040u);
}
