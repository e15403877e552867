// The AVX2 spelling of vector.h: sixteen lanes are two registers of eight.
#pragma once

namespace fewer {

constexpr const char* ISA_NAME = "avx2";
constexpr int ATTENTION_ROWS = 2;

struct Float16 {
    __m256 low, high;
};
struct Int16 {
    __m256i low, high;
};

FEWER_INLINE Float16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
FEWER_INLINE Float16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
FEWER_INLINE void store(float* p, Float16 a) {
    _mm256_storeu_ps(p, a.low);
    _mm256_storeu_ps(p + 8, a.high);
}
#define FEWER_BOTH(op, a, b) {op(a.low, b.low), op(a.high, b.high)}
FEWER_INLINE Float16 operator+(Float16 a, Float16 b) { return FEWER_BOTH(_mm256_add_ps, a, b); }
FEWER_INLINE Float16 operator-(Float16 a, Float16 b) { return FEWER_BOTH(_mm256_sub_ps, a, b); }
FEWER_INLINE Float16 operator*(Float16 a, Float16 b) { return FEWER_BOTH(_mm256_mul_ps, a, b); }
FEWER_INLINE Float16 operator/(Float16 a, Float16 b) { return FEWER_BOTH(_mm256_div_ps, a, b); }
FEWER_INLINE Float16 maximum(Float16 a, Float16 b) { return FEWER_BOTH(_mm256_max_ps, a, b); }
FEWER_INLINE Float16 minimum(Float16 a, Float16 b) { return FEWER_BOTH(_mm256_min_ps, a, b); }
FEWER_INLINE Int16 operator+(Int16 a, Int16 b) { return FEWER_BOTH(_mm256_add_epi32, a, b); }
#undef FEWER_BOTH
FEWER_INLINE Float16 fma(Float16 a, Float16 b, Float16 c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
FEWER_INLINE Float16 absolute(Float16 a) {
    const __m256 sign = _mm256_set1_ps(-0.f);
    return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
FEWER_INLINE Float16 round_lanes(Float16 a) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.low, nearest), _mm256_round_ps(a.high, nearest)};
}

// x * 2^n for n in [-160, 128): two exact powers, so that the result may underflow to zero.
FEWER_INLINE __m256 scale_eight(__m256 x, __m256 n) {
    const __m256i k = _mm256_cvtps_epi32(n), first = _mm256_srai_epi32(k, 1);
    const __m256i second = _mm256_sub_epi32(k, first), bias = _mm256_set1_epi32(127);
    const auto power = [&](__m256i e) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, bias), 23));
    };
    return _mm256_mul_ps(_mm256_mul_ps(x, power(first)), power(second));
}
FEWER_INLINE Float16 scale_by_power_of_2(Float16 a, Float16 n) {
    return {scale_eight(a.low, n.low), scale_eight(a.high, n.high)};
}

FEWER_INLINE __m256 load_eight_halves(const half* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
}

FEWER_INLINE Float16 keep_below(Float16 a, int count, float other) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), eight = _mm256_set1_epi32(8);
    const __m256i limit = _mm256_set1_epi32(count);
    const __m256 fill = _mm256_set1_ps(other);
    const __m256i low = _mm256_cmpgt_epi32(limit, lane);
    const __m256i high = _mm256_cmpgt_epi32(limit, _mm256_add_epi32(lane, eight));
    return {_mm256_blendv_ps(fill, a.low, _mm256_castsi256_ps(low)),
            _mm256_blendv_ps(fill, a.high, _mm256_castsi256_ps(high))};
}

// Lanes as bits, the first lane lowest.
template <int Comparison>
FEWER_INLINE u32 compare_lanes(Float16 a, Float16 b) {
    const auto low = u32(_mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, Comparison)));
    const auto high = u32(_mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, Comparison)));
    return low | high << 8;
}
FEWER_INLINE u32 lanes_above(Float16 a, Float16 b) { return compare_lanes<_CMP_GT_OQ>(a, b); }
FEWER_INLINE u32 lanes_equal(Float16 a, Float16 b) { return compare_lanes<_CMP_EQ_OQ>(a, b); }

FEWER_INLINE float sum_lanes(Float16 a) {
    __m256 s = _mm256_add_ps(a.low, a.high);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
FEWER_INLINE float max_lanes(Float16 a) {
    __m256 s = _mm256_max_ps(a.low, a.high);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

FEWER_INLINE Int16 to_int(Float16 a) {
    return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)};
}
FEWER_INLINE Float16 to_float(Int16 a) {
    return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)};
}
FEWER_INLINE Int16 load_int(const int* p) {
    return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 8))};
}
FEWER_INLINE int sum_lanes(Int16 a) {
    const __m256i s = _mm256_add_epi32(a.low, a.high);
    __m128i q = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}
// Packing works within halves of a register; the permutation puts the sixteen in order.
FEWER_INLINE void store_int8(std::int8_t* p, Int16 a) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.low, a.high), 0xd8);
    const __m128i low = _mm256_castsi256_si128(words), high = _mm256_extracti128_si256(words, 1);
    _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(low, high));
}

FEWER_INLINE Int16 splat(int x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
FEWER_INLINE void store_int16(std::int16_t* p, Int16 a) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.low, a.high), 0xd8);
    _mm256_storeu_si256((__m256i*)p, words);
}

// To the nearest, ties to even.
FEWER_INLINE __m256i upper_halves(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounding = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    return _mm256_srli_epi32(_mm256_add_epi32(bits, rounding), 16);
}
FEWER_INLINE void store_bf16(bf16* p, Float16 a) {
    const __m256i packed = _mm256_packus_epi32(upper_halves(a.low), upper_halves(a.high));
    _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(packed, 0xd8));
}

FEWER_INLINE __m256 dot_eight(__m256 acc, __m256i pairs, __m256 even, __m256 odd) {
    const __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    const __m256 second =
        _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(int(0xffff0000u))));
    return _mm256_fmadd_ps(second, odd, _mm256_fmadd_ps(first, even, acc));
}
FEWER_INLINE Float16 dot_pairs(Float16 acc, const bf16* a, u32 b) {
    const __m256 even = _mm256_set1_ps(bf16_to_float(bf16(b & 0xffff)));
    const __m256 odd = _mm256_set1_ps(bf16_to_float(bf16(b >> 16)));
    return {dot_eight(acc.low, _mm256_loadu_si256((const __m256i*)a), even, odd),
            dot_eight(acc.high, _mm256_loadu_si256((const __m256i*)(a + 16)), even, odd)};
}

constexpr int BYTE_BIAS = 0;

// Signs move from b to a, for one side must be unsigned; the sums of pairs fit into int16.
FEWER_INLINE __m256i dot_32_bytes(__m256i acc, const u8* a, __m256i b) {
    const __m256i signed_a = _mm256_sign_epi8(_mm256_loadu_si256((const __m256i*)a), b);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(b), signed_a);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
FEWER_INLINE Int16 dot_bytes(Int16 acc, const u8* a, u32 b) {
    const __m256i four = _mm256_set1_epi32(int(b));
    return {dot_32_bytes(acc.low, a, four), dot_32_bytes(acc.high, a + 32, four)};
}

FEWER_INLINE __m256i dot_16_wide(__m256i acc, const std::int8_t* a, __m256i b) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)a));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(wide, b));
}
FEWER_INLINE Int16 dot_wide(Int16 acc, const std::int8_t* a, u32 b) {
    const __m256i pair = _mm256_set1_epi32(int(b));
    return {dot_16_wide(acc.low, a, pair), dot_16_wide(acc.high, a + 16, pair)};
}

}  // namespace fewer
