// The AVX-512 spelling of vector.h (VNNI for int8 dot products, BF16 for attention).
#pragma once

namespace fewer {

constexpr const char* ISA_NAME = "avx512";
constexpr int ATTENTION_ROWS = 6;  // query rows whose accumulators stay in registers

struct Float16 {
    __m512 v;
};
struct Int16 {
    __m512i v;
};

FEWER_INLINE Float16 splat(float x) { return {_mm512_set1_ps(x)}; }
FEWER_INLINE Float16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
FEWER_INLINE void store(float* p, Float16 a) { _mm512_storeu_ps(p, a.v); }
FEWER_INLINE Float16 operator+(Float16 a, Float16 b) { return {_mm512_add_ps(a.v, b.v)}; }
FEWER_INLINE Float16 operator-(Float16 a, Float16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
FEWER_INLINE Float16 operator*(Float16 a, Float16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
FEWER_INLINE Float16 operator/(Float16 a, Float16 b) { return {_mm512_div_ps(a.v, b.v)}; }
FEWER_INLINE Float16 fma(Float16 a, Float16 b, Float16 c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
FEWER_INLINE Float16 maximum(Float16 a, Float16 b) { return {_mm512_max_ps(a.v, b.v)}; }
FEWER_INLINE Float16 minimum(Float16 a, Float16 b) { return {_mm512_min_ps(a.v, b.v)}; }
FEWER_INLINE Float16 absolute(Float16 a) { return {_mm512_abs_ps(a.v)}; }
FEWER_INLINE Float16 round_lanes(Float16 a) { return {_mm512_roundscale_ps(a.v, 0)}; }
FEWER_INLINE Float16 scale_by_power_of_2(Float16 a, Float16 n) {
    return {_mm512_scalef_ps(a.v, n.v)};
}

FEWER_INLINE Float16 load_half(const half* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))};
}

// Lanes below `count` keep their value, the others become `other`.
FEWER_INLINE Float16 keep_below(Float16 a, int count, float other) {
    const __mmask16 keep = count >= 16 ? 0xffff : __mmask16((1u << count) - 1);
    return {_mm512_mask_blend_ps(keep, _mm512_set1_ps(other), a.v)};
}

// Lanes as bits, the first lane lowest.
FEWER_INLINE u32 lanes_above(Float16 a, Float16 b) {
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ);
}
FEWER_INLINE u32 lanes_equal(Float16 a, Float16 b) {
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ);
}

FEWER_INLINE float sum_lanes(Float16 a) { return _mm512_reduce_add_ps(a.v); }
FEWER_INLINE float max_lanes(Float16 a) { return _mm512_reduce_max_ps(a.v); }

FEWER_INLINE Int16 to_int(Float16 a) { return {_mm512_cvtps_epi32(a.v)}; }
FEWER_INLINE Float16 to_float(Int16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
FEWER_INLINE Int16 operator+(Int16 a, Int16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
FEWER_INLINE Int16 load_int(const int* p) { return {_mm512_loadu_si512(p)}; }
FEWER_INLINE int sum_lanes(Int16 a) { return _mm512_reduce_add_epi32(a.v); }
FEWER_INLINE void store_int8(std::int8_t* p, Int16 a) {
    _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a.v));
}

FEWER_INLINE Int16 splat(int x) { return {_mm512_set1_epi32(x)}; }
FEWER_INLINE void store_int16(std::int16_t* p, Int16 a) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(a.v));
}

FEWER_INLINE void store_bf16(bf16* p, Float16 a) {
    _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(a.v));
}

// acc[i] += a[2i] * b[0] + a[2i + 1] * b[1] over 16 pairs of bf16; `b` is one pair as 32 bits.
FEWER_INLINE Float16 dot_pairs(Float16 acc, const bf16* a, u32 b) {
    return {_mm512_dpbf16_ps(acc.v, (__m512bh)_mm512_loadu_si512(a),
                             (__m512bh)_mm512_set1_epi32(int(b)))};
}

// What dot_bytes wants added to the signed bytes of `a`; the caller takes it out of the result.
constexpr int BYTE_BIAS = 128;

// acc[i] += a[4i] * b[0] + ... + a[4i + 3] * b[3] over 16 fours of int8; `b` is four as 32 bits.
FEWER_INLINE Int16 dot_bytes(Int16 acc, const u8* a, u32 b) {
    return {_mm512_dpbusd_epi32(acc.v, _mm512_loadu_si512(a), _mm512_set1_epi32(int(b)))};
}

// acc[i] += a[2i] * b[0] + a[2i + 1] * b[1] over 16 pairs of int8; `b` is a pair of int16.
FEWER_INLINE Int16 dot_wide(Int16 acc, const std::int8_t* a, u32 b) {
    const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)a));
    return {_mm512_dpwssd_epi32(acc.v, wide, _mm512_set1_epi32(int(b)))};
}

}  // namespace fewer
