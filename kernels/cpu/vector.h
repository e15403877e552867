// Sixteen lanes of float or int32, the same operations on AVX-512 and on AVX2.
//
// Everything above this file is written once. A reduction over lanes has one fixed order, and
// every function here is exact or correctly rounded, so that a row of a step never depends on
// which other rows share the step.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace fewer {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using half = std::uint16_t;  // IEEE binary16 bits
using bf16 = std::uint16_t;  // bfloat16 bits; both only ever move as bits

#define FEWER_INLINE inline __attribute__((always_inline))

FEWER_INLINE float bf16_to_float(bf16 bits) {
    const u32 wide = u32(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

}  // namespace fewer

#if defined(__AVX512F__) && defined(__AVX512VNNI__) && defined(__AVX512BF16__)
#include "vector_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "vector_avx2.h"
#else
#error "kernels/cpu needs AVX-512 with VNNI and BF16, or AVX2 with FMA and F16C"
#endif

namespace fewer {

// NaN and what lies beyond `limit` become `limit`, or its negative.
FEWER_INLINE Float16 finite(Float16 x, float limit) {
    return maximum(minimum(x, splat(limit)), splat(-limit));  // minimum(NaN, b) is b
}

// exp for the range a SiLU needs; relative error below 2e-7 times a few. Exactly 1 at 0.
FEWER_INLINE Float16 exp_lanes(Float16 x) {
    x = maximum(minimum(x, splat(88.f)), splat(-87.f));
    const Float16 t = x * splat(1.44269504f), n = round_lanes(t), f = t - n;
    Float16 p = splat(1.5403530e-4f);
    p = fma(p, f, splat(1.3333558e-3f));
    p = fma(p, f, splat(9.6181291e-3f));
    p = fma(p, f, splat(5.5504109e-2f));
    p = fma(p, f, splat(2.4022651e-1f));
    p = fma(p, f, splat(6.9314718e-1f));
    p = fma(p, f, splat(1.f));
    return scale_by_power_of_2(p, n);
}

// 2^t for t <= 0: exactly 1 at 0 and exactly 0 at MASKED, so that a masked tile changes nothing.
constexpr float MASKED = -1e30f;

FEWER_INLINE Float16 exp2_lanes(Float16 t) {
    t = maximum(t, splat(-160.f));
    const Float16 n = round_lanes(t), f = t - n;
    Float16 p = splat(1.3333558e-3f);
    p = fma(p, f, splat(9.6181291e-3f));
    p = fma(p, f, splat(5.5504109e-2f));
    p = fma(p, f, splat(2.4022651e-1f));
    p = fma(p, f, splat(6.9314718e-1f));
    p = fma(p, f, splat(1.f));
    return scale_by_power_of_2(p, n);
}

}  // namespace fewer
