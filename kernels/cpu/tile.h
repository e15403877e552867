// The inner product tile: 32 rows of a matrix times up to 8 rows of activations.
//
// Each output is accumulated group after group by the same operations whatever the tile's
// shape, so a result does not depend on how many rows a step has. The integer part is exact.
#pragma once
#include "matrix.h"

namespace fewer {

// Two row blocks x `Tokens` results, sixteen lanes each.
template <int Tokens>
struct Tile {
    Float16 value[2][Tokens];
};

template <Format F>
constexpr int group_bytes_of =
    F == Format::EIGHT_BIT ? EIGHT_BIT_GROUP_BYTES : FOUR_BIT_GROUP_BYTES;

// The scales of group g in a block; FOUR_BIT's minima are sixteen further.
template <Format F>
FEWER_INLINE const half* scales_of(const u8* block, int g) {
    const std::size_t at = F == Format::EIGHT_BIT ? std::size_t(g) * BLOCK_ROWS * sizeof(half)
                                                  : std::size_t(g) * FOUR_BIT_GROUP_BYTES + 256;
    return reinterpret_cast<const half*>(block + at);
}

// Four activations as one 32-bit word, for every lane to multiply with.
FEWER_INLINE int word_at(const std::int8_t* values) {
    int word;
    std::memcpy(&word, values, 4);
    return word;
}

#if defined(__AVX512VNNI__)

// Fetch group g of two blocks, or of the next two where g is past the end. The last blocks'
// next ones may lie outside the matrix: a prefetch never faults.
template <Format F>
FEWER_INLINE void prefetch_group(const Matrix& m, const u8* block, int g) {
    const int next = g < m.groups ? 0 : 2;
    const std::size_t at =
        m.scales_bytes + std::size_t(g < m.groups ? g : g - m.groups) * group_bytes_of<F>;
    for (int b = 0; b < 2; b++)
        for (int i = 0; i < group_bytes_of<F>; i += 64)
            _mm_prefetch(
                reinterpret_cast<const char*>(block + std::size_t(next + b) * m.block_bytes + at) +
                    i,
                _MM_HINT_T0);
}

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

// Blocks `block` and `block + 1` times rows [row, row + Tokens) of x. `streaming`: the weights
// come from memory for the first time, so fetch ahead further.
template <Format F, int Tokens>
__attribute__((noinline)) void multiply(const Matrix& m, int block, const Activations& x, int row,
                                        bool streaming, Tile<Tokens>& result) {
    constexpr bool eight = F == Format::EIGHT_BIT;
    constexpr int ahead = Tokens > 4 ? 9 : eight ? 3 : 4;
    const u8* w = m.block(block);
    const std::int8_t* values = x.values + std::size_t(row) * x.columns;
    const std::size_t at = std::size_t(row) * x.groups;
    Tile<Tokens> out;
    for (auto& lane : out.value)
        for (auto& v : lane) v = splat(0.f);
    for (int g = 0; g < m.groups; g++) {
        if (Tokens <= 4 || streaming) prefetch_group<F>(m, w, g + ahead);
        __m512i sum[2][Tokens];
        for (int t = 0; t < Tokens; t++)
            for (int b = 0; b < 2; b++)
                sum[b][t] = eight ? _mm512_set1_epi32(x.offset[at + std::size_t(t) * x.groups + g])
                                  : _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            __m512i first[2], second[2];
            for (int b = 0; b < 2; b++)
                load_words<F>(
                    w + b * m.block_bytes + m.scales_bytes + std::size_t(g) * group_bytes_of<F>, j,
                    first[b], second[b]);
#pragma GCC unroll 8
            for (int t = 0; t < Tokens; t++) {
                const std::int8_t* k = values + std::size_t(t) * x.columns + g * GROUP + 4 * j;
                const __m512i low = _mm512_set1_epi32(word_at(k)),
                              high = _mm512_set1_epi32(word_at(k + 16));
                for (int b = 0; b < 2; b++)
                    sum[b][t] = _mm512_dpbusd_epi32(sum[b][t], first[b], low);
                for (int b = 0; b < 2; b++)
                    sum[b][t] = _mm512_dpbusd_epi32(sum[b][t], second[b], high);
            }
        }
        for (int b = 0; b < 2; b++) {
            const half* scales = scales_of<F>(w + b * m.block_bytes, g);
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

// Eight rows: one side of a block.
template <Format F, int Tokens>
FEWER_INLINE void multiply_side(const Matrix& m, const u8* block, int side, const Activations& x,
                                int row, __m256 (&out)[Tokens]) {
    const std::int8_t* values = x.values + std::size_t(row) * x.columns;
    const std::size_t at = std::size_t(row) * x.groups;
    for (auto& v : out) v = _mm256_setzero_ps();
    for (int g = 0; g < m.groups; g++) {
        const u8* group = block + m.scales_bytes + std::size_t(g) * group_bytes_of<F> + side * 32;
        __m256i sum[Tokens];
        for (auto& s : sum) s = _mm256_setzero_si256();
        for (int j = 0; j < 4; j++) {
            __m256i first, second;
            load_words<F>(group, j, first, second);
            for (int t = 0; t < Tokens; t++) {
                const std::int8_t* k = values + std::size_t(t) * x.columns + g * GROUP + 4 * j;
                sum[t] = add_products<F>(sum[t], first, _mm256_set1_epi32(word_at(k)));
                sum[t] = add_products<F>(sum[t], second, _mm256_set1_epi32(word_at(k + 16)));
            }
        }
        const half* scales = scales_of<F>(block, g) + side * 8;
        const __m256 scale = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)scales));
        for (int t = 0; t < Tokens; t++) {
            const std::size_t i = at + std::size_t(t) * x.groups + g;
            const __m256 weight = _mm256_mul_ps(scale, _mm256_set1_ps(x.scale[i]));
            if constexpr (F == Format::EIGHT_BIT) {
                out[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[t]), weight, out[t]);
            } else {
                const __m256i wide = _mm256_madd_epi16(sum[t], _mm256_set1_epi16(1));
                const __m256 minimum =
                    _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(scales + BLOCK_ROWS)));
                out[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(wide), weight, out[t]);
                out[t] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(x.scaled_sum[i]), out[t]);
            }
        }
    }
}

template <Format F, int Tokens>
__attribute__((noinline)) void multiply(const Matrix& m, int block, const Activations& x, int row,
                                        bool, Tile<Tokens>& out) {
    for (int b = 0; b < 2; b++) {
        __m256 low[Tokens], high[Tokens];
        multiply_side<F, Tokens>(m, m.block(block + b), 0, x, row, low);
        multiply_side<F, Tokens>(m, m.block(block + b), 1, x, row, high);
        for (int t = 0; t < Tokens; t++) out.value[b][t] = {low[t], high[t]};
    }
}

#endif

}  // namespace fewer
