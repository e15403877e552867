// The inner product tile: 32 rows of a matrix times up to 8 rows of activations.
//
// Each output is accumulated group after group by the same operations whatever the tile's
// shape, so a result does not depend on how many rows a step has. The integer part is exact.
#pragma once
#include "matrix.h"

namespace fewer {

// The two halves of a block x `Tokens` results, sixteen lanes each.
template <int Tokens>
struct Tile {
    Float16 value[2][Tokens];
};

// Fetch ahead what will be read so many bytes later, in this block or a later one. Past the last
// block that may lie outside the matrix: a prefetch never faults.
constexpr int AHEAD_BYTES = 2 * 1024;
template <Format F>
FEWER_INLINE void prefetch_group(const u8* group) {
    for (int i = 0; i < group_bytes(F); i += 64)
        _mm_prefetch(reinterpret_cast<const char*>(group) + AHEAD_BYTES + i, _MM_HINT_T1);
}

// Four activations as one 32-bit word, for every lane to multiply with.
FEWER_INLINE int word_at(const std::int8_t* values) {
    int word;
    std::memcpy(&word, values, 4);
    return word;
}

#if defined(__AVX512VNNI__)

// Bytes of k 4j .. 4j+3 and of k 16+4j .. 16+4j+3 of a group, for sixteen rows.
template <Format F>
FEWER_INLINE void load_words(const u8* group, int j, __m512i& first, __m512i& second) {
    if constexpr (F == Format::EIGHT_BIT) {
        first = _mm512_loadu_si512(group + j * 64);
        second = _mm512_loadu_si512(group + j * 64 + 256);
    } else {
        const __m512i low_nibble = _mm512_set1_epi8(15), pairs = _mm512_loadu_si512(group + j * 64);
        first = _mm512_and_si512(pairs, low_nibble);
        second = _mm512_and_si512(_mm512_srli_epi16(pairs, 4), low_nibble);
    }
}

// One block times rows [row, row + Tokens) of x. `streaming`: the weights come from memory, so
// fetch them ahead.
template <Format F, int Tokens>
__attribute__((noinline)) void multiply(const Matrix& m, int block, const Activations& x, int row,
                                        bool streaming, Tile<Tokens>& result) {
    constexpr bool eight = F == Format::EIGHT_BIT;
    const u8* group = m.block(block);
    const std::int8_t* values = x.values + std::size_t(row) * x.columns;
    const std::size_t at = std::size_t(row) * x.groups;
    Tile<Tokens> out;
    for (auto& lane : out.value)
        for (auto& v : lane) v = splat(0.f);
    for (int g = 0; g < m.groups; g++, group += group_bytes(F)) {
        if (streaming) prefetch_group<F>(group);
        __m512i sum[2][Tokens];
        for (int t = 0; t < Tokens; t++)
            for (int b = 0; b < 2; b++)
                sum[b][t] = eight ? _mm512_set1_epi32(x.offset[at + std::size_t(t) * x.groups + g])
                                  : _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            __m512i first[2], second[2];
            for (int b = 0; b < 2; b++)
                load_words<F>(group + header_bytes(F) + b * half_bytes(F), j, first[b], second[b]);
#pragma GCC unroll 8
            for (int t = 0; t < Tokens; t++) {
                const std::int8_t* k = values + std::size_t(t) * x.columns + g * GROUP + 4 * j;
                const __m512i low = _mm512_set1_epi32(word_at(k));
                const __m512i high = _mm512_set1_epi32(word_at(k + 16));
                for (int b = 0; b < 2; b++)
                    sum[b][t] = _mm512_dpbusd_epi32(sum[b][t], first[b], low);
                for (int b = 0; b < 2; b++)
                    sum[b][t] = _mm512_dpbusd_epi32(sum[b][t], second[b], high);
            }
        }
        for (int b = 0; b < 2; b++) {
            const half* scales = reinterpret_cast<const half*>(group) + b * HALF_ROWS;
            const Float16 scale = load_half(scales);
            const Float16 minimum = eight ? scale : load_half(scales + BLOCK_ROWS);
#pragma GCC unroll 8
            for (int t = 0; t < Tokens; t++) {
                const std::size_t i = at + std::size_t(t) * x.groups + g;
                Float16& v = out.value[b][t];
                v = fma(to_float({sum[b][t]}), scale * splat(x.scale[i]), v);
                if constexpr (!eight) v = fma(minimum, splat(x.scaled_sum[i]), v);
            }
        }
    }
    result = out;
}

#else  // AVX2: no instruction for u8 x s8 dot products, so through 16-bit pairs

// Bytes of k 4j .. 4j+3 and of k 16+4j .. 16+4j+3 of a group, for eight rows. 8-bit ones signed.
template <Format F>
FEWER_INLINE void load_words(const u8* group, int j, __m256i& first, __m256i& second) {
    const __m256i raw = _mm256_loadu_si256((const __m256i*)(group + j * 64));
    if constexpr (F == Format::EIGHT_BIT) {
        const __m256i flip = _mm256_set1_epi8(char(0x80));
        first = _mm256_xor_si256(raw, flip);
        second = _mm256_xor_si256(_mm256_loadu_si256((const __m256i*)(group + j * 64 + 256)), flip);
    } else {
        const __m256i low_nibble = _mm256_set1_epi8(15);
        first = _mm256_and_si256(raw, low_nibble);
        second = _mm256_and_si256(_mm256_srli_epi16(raw, 4), low_nibble);
    }
}

// Add four products a row to `sum`. Nothing saturates: 4-bit sums stay 16 bits wide for a whole
// group, 8 additions of at most 2 * 15 * 127; 8-bit ones are |w| times sign(w) * x, at most
// 2 * 128 * 127, and are widened at once.
template <Format F>
FEWER_INLINE __m256i add_products(__m256i sum, __m256i w, __m256i x) {
    if constexpr (F == Format::FOUR_BIT) return _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x));
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

// One group of eight rows, a quarter of a block, added to the sums of `Tokens` rows of x.
template <Format F, int Tokens>
FEWER_INLINE void add_group(const u8* group, int quarter, const Activations& x, int row, int g,
                            __m256 (&out)[Tokens]) {
    const u8* words = group + header_bytes(F) + quarter / 2 * half_bytes(F) + quarter % 2 * 32;
    const std::int8_t* values = x.values + std::size_t(row) * x.columns + g * GROUP;
    __m256i sum[Tokens];
    for (auto& s : sum) s = _mm256_setzero_si256();
    for (int j = 0; j < 4; j++) {
        __m256i first, second;
        load_words<F>(words, j, first, second);
        for (int t = 0; t < Tokens; t++) {
            const std::int8_t* k = values + std::size_t(t) * x.columns + 4 * j;
            sum[t] = add_products<F>(sum[t], first, _mm256_set1_epi32(word_at(k)));
            sum[t] = add_products<F>(sum[t], second, _mm256_set1_epi32(word_at(k + 16)));
        }
    }
    const half* scales = reinterpret_cast<const half*>(group) + quarter * 8;
    const __m256 scale = load_eight_halves(scales);
    for (int t = 0; t < Tokens; t++) {
        const std::size_t i = std::size_t(row + t) * x.groups + g;
        const __m256 weight = _mm256_mul_ps(scale, _mm256_set1_ps(x.scale[i]));
        if constexpr (F == Format::EIGHT_BIT) {
            out[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[t]), weight, out[t]);
        } else {
            const __m256i wide = _mm256_madd_epi16(sum[t], _mm256_set1_epi16(1));
            const __m256 minimum = load_eight_halves(scales + BLOCK_ROWS);
            out[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(wide), weight, out[t]);
            out[t] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(x.scaled_sum[i]), out[t]);
        }
    }
}

// One block times rows [row, row + Tokens) of x.
template <Format F, int Tokens>
__attribute__((noinline)) void multiply(const Matrix& m, int block, const Activations& x, int row,
                                        bool streaming, Tile<Tokens>& result) {
    __m256 out[4][Tokens];
    for (auto& quarter : out)
        for (auto& v : quarter) v = _mm256_setzero_ps();
    const u8* group = m.block(block);
    for (int g = 0; g < m.groups; g++, group += group_bytes(F)) {
        if (streaming) prefetch_group<F>(group);
        for (int q = 0; q < 4; q++) add_group<F, Tokens>(group, q, x, row, g, out[q]);
    }
    for (int b = 0; b < 2; b++)
        for (int t = 0; t < Tokens; t++) result.value[b][t] = {out[2 * b][t], out[2 * b + 1][t]};
}

#endif

}  // namespace fewer
