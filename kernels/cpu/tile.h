// The inner product tile: 32 rows of a matrix times up to 8 rows of activations.
//
// Each output is accumulated group after group by the same operations whatever the tile's
// shape, so a result does not depend on how many rows a step has. The integer part is exact.
#pragma once
#include "matrix.h"

namespace fewer {

// Two row blocks x `Tokens` results, sixteen lanes each.
template <int Tokens>
struct Tile { Float16 value[2][Tokens]; };

#if defined(__AVX512VNNI__)

template <Format F>
FEWER_INLINE void prefetch_group(const Matrix& m, const u8* w, int g) {
    constexpr int bytes = F == Format::EIGHT_BIT ? EIGHT_BIT_GROUP_BYTES : FOUR_BIT_GROUP_BYTES;
    for (int b = 0; b < 2; b++) {
        const u8* p = g < m.groups
            ? w + b * m.block_bytes + m.scales_bytes + std::size_t(g) * bytes
            : w + (2 + b) * m.block_bytes + m.scales_bytes + std::size_t(g - m.groups) * bytes;
        for (int i = 0; i < bytes; i += 64) _mm_prefetch((const char*)p + i, _MM_HINT_T0);
    }
}

// `streaming`: the weights come from memory for the first time, so fetch ahead further.
template <Format F, int Tokens>
FEWER_INLINE Tile<Tokens> multiply(const Matrix& m, int block, const Activations& x, int row, bool streaming) {
    constexpr bool eight = F == Format::EIGHT_BIT;
    constexpr int ahead = Tokens > 4 ? 9 : eight ? 3 : 4;
    const u8* w = m.block(block);
    const std::int8_t* values = x.values + std::size_t(row) * x.columns;
    const std::size_t at = std::size_t(row) * x.groups;
    const __m512i low_nibble = _mm512_set1_epi8(15);
    Tile<Tokens> out;
    for (auto& lane : out.value) for (auto& v : lane) v = splat(0.f);
    for (int g = 0; g < m.groups; g++) {
        if (Tokens <= 4 || streaming) prefetch_group<F>(m, w, g + ahead);
        __m512i sum[2][Tokens];
        for (int t = 0; t < Tokens; t++)
            for (int b = 0; b < 2; b++)
                sum[b][t] = eight ? _mm512_set1_epi32(x.offset[at + std::size_t(t) * x.groups + g]) : _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            __m512i first[2], second[2];  // k 4j .. 4j+3 and 16+4j .. 16+4j+3 of the group
            for (int b = 0; b < 2; b++) {
                const u8* p = w + b * m.block_bytes + m.scales_bytes;
                if constexpr (eight) {
                    p += std::size_t(g) * EIGHT_BIT_GROUP_BYTES + j * 64;
                    first[b] = _mm512_loadu_si512(p);
                    second[b] = _mm512_loadu_si512(p + 256);
                } else {
                    const __m512i pairs = _mm512_loadu_si512(p + std::size_t(g) * FOUR_BIT_GROUP_BYTES + j * 64);
                    first[b] = _mm512_and_si512(pairs, low_nibble);
                    second[b] = _mm512_and_si512(_mm512_srli_epi16(pairs, 4), low_nibble);
                }
            }
#pragma GCC unroll 8
            for (int t = 0; t < Tokens; t++) {
                const std::int8_t* k = values + std::size_t(t) * x.columns + g * GROUP;
                int a, c;
                std::memcpy(&a, k + 4 * j, 4);
                std::memcpy(&c, k + 16 + 4 * j, 4);
                const __m512i va = _mm512_set1_epi32(a), vc = _mm512_set1_epi32(c);
                for (int b = 0; b < 2; b++) sum[b][t] = _mm512_dpbusd_epi32(sum[b][t], first[b], va);
                for (int b = 0; b < 2; b++) sum[b][t] = _mm512_dpbusd_epi32(sum[b][t], second[b], vc);
            }
        }
        for (int b = 0; b < 2; b++) {
            const u8* p = w + b * m.block_bytes;
            const half* scales = (const half*)(eight ? p + std::size_t(g) * 32 : p + std::size_t(g) * FOUR_BIT_GROUP_BYTES + 256);
            const Float16 scale = load_half(scales);
            const Float16 minimum = eight ? scale : load_half(scales + 16);
#pragma GCC unroll 8
            for (int t = 0; t < Tokens; t++) {
                const std::size_t i = at + std::size_t(t) * x.groups + g;
                Float16& v = out.value[b][t];
                v = fma(to_float({sum[b][t]}), scale * splat(x.scale[i]), v);
                if constexpr (!eight) v = fma(minimum, splat(x.scaled_sum[i]), v);
            }
        }
    }
    return out;
}

#else  // AVX2: no instruction for u8 x s8 dot products, so through 16-bit pairs

// Eight rows (one half of a block) x Tokens. 4-bit sums fit 16 bits for a whole group:
// 8 additions of at most 2 * 15 * 127. 8-bit values go through |w| and sign(x, w).
template <Format F, int Tokens>
FEWER_INLINE void multiply_half(const Matrix& m, const u8* w, int side, const Activations& x, int row, __m256 (&out)[Tokens]) {
    constexpr bool eight = F == Format::EIGHT_BIT;
    const __m256i low_nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    const __m256i flip = _mm256_set1_epi8(char(0x80));
    const std::int8_t* values = x.values + std::size_t(row) * x.columns;
    const std::size_t at = std::size_t(row) * x.groups;
    for (auto& v : out) v = _mm256_setzero_ps();
    for (int g = 0; g < m.groups; g++) {
        __m256i sum[Tokens];
        for (auto& s : sum) s = _mm256_setzero_si256();
        for (int j = 0; j < 4; j++) {
            const u8* p = w + m.scales_bytes + std::size_t(g) * (eight ? EIGHT_BIT_GROUP_BYTES : FOUR_BIT_GROUP_BYTES) + j * 64 + side * 32;
            const __m256i raw = _mm256_loadu_si256((const __m256i*)p);
            __m256i first, second;
            if constexpr (eight) {
                first = _mm256_xor_si256(raw, flip);
                second = _mm256_xor_si256(_mm256_loadu_si256((const __m256i*)(p + 256)), flip);
            } else {
                first = _mm256_and_si256(raw, low_nibble);
                second = _mm256_and_si256(_mm256_srli_epi16(raw, 4), low_nibble);
            }
            for (int t = 0; t < Tokens; t++) {
                const std::int8_t* k = values + std::size_t(t) * x.columns + g * GROUP;
                int a, c;
                std::memcpy(&a, k + 4 * j, 4);
                std::memcpy(&c, k + 16 + 4 * j, 4);
                const __m256i va = _mm256_set1_epi32(a), vc = _mm256_set1_epi32(c);
                if constexpr (eight) {
                    const __m256i pa = _mm256_maddubs_epi16(_mm256_abs_epi8(first), _mm256_sign_epi8(va, first));
                    const __m256i pc = _mm256_maddubs_epi16(_mm256_abs_epi8(second), _mm256_sign_epi8(vc, second));
                    sum[t] = _mm256_add_epi32(sum[t], _mm256_madd_epi16(pa, ones));
                    sum[t] = _mm256_add_epi32(sum[t], _mm256_madd_epi16(pc, ones));
                } else {
                    sum[t] = _mm256_add_epi16(sum[t], _mm256_maddubs_epi16(first, va));
                    sum[t] = _mm256_add_epi16(sum[t], _mm256_maddubs_epi16(second, vc));
                }
            }
        }
        const half* scales = (const half*)(eight ? w + std::size_t(g) * 32 : w + std::size_t(g) * FOUR_BIT_GROUP_BYTES + 256) + side * 8;
        const __m256 scale = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)scales));
        const __m256 minimum = eight ? scale : _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(scales + 16)));
        for (int t = 0; t < Tokens; t++) {
            const std::size_t i = at + std::size_t(t) * x.groups + g;
            const __m256i exact = eight ? sum[t] : _mm256_madd_epi16(sum[t], ones);
            out[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact), _mm256_mul_ps(scale, _mm256_set1_ps(x.scale[i])), out[t]);
            if constexpr (!eight) out[t] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(x.scaled_sum[i]), out[t]);
        }
    }
}

template <Format F, int Tokens>
FEWER_INLINE Tile<Tokens> multiply(const Matrix& m, int block, const Activations& x, int row, bool) {
    Tile<Tokens> out;
    for (int b = 0; b < 2; b++) {
        __m256 low[Tokens], high[Tokens];
        multiply_half<F, Tokens>(m, m.block(block + b), 0, x, row, low);
        multiply_half<F, Tokens>(m, m.block(block + b), 1, x, row, high);
        for (int t = 0; t < Tokens; t++) out.value[b][t] = {low[t], high[t]};
    }
    return out;
}

#endif

}  // namespace fewer
