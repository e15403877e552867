// Attention of a few query rows over one tile of the KV memory, with online softmax (Milakov and
// Gimelshein, 2018).
//
// The same work in the same order for every row, whatever shares the step: tiles of 64 positions
// from position 0; splits of 1,024 positions, each with its own softmax, merged in order. A
// position beyond a row's end contributes exactly nothing, whatever lies there.
#pragma once
#include <algorithm>

#include "kv.h"

namespace fewer {

constexpr int KV_SPLIT = 1024;  // positions in a split

// One query row's running softmax: maximum, sum of weights, weighted sum of values.
struct Softmax {
    float maximum;
    Float16 sum;  // lanes are added up at the end
    Float16 value[MAX_HEAD_DIM / 16];

    void reset() {
        maximum = MASKED;
        sum = splat(0.f);
        for (auto& v : value) v = splat(0.f);
    }

    // Join a later split's result to this one. The sums are whole numbers of lanes by then.
    void merge(const Softmax& later, int head_dim) {
        const float m = maximum > later.maximum ? maximum : later.maximum;
        const Float16 mine = exp2_lanes(splat(maximum - m)),
                      theirs = exp2_lanes(splat(later.maximum - m));
        sum = fma(sum, mine, later.sum * theirs);
        for (int i = 0; i < head_dim / 16; i++)
            value[i] = fma(value[i], mine, later.value[i] * theirs);
        maximum = m;
    }
};

// One query row in one tile: its softmax, its query as the KV format stored it (scaled by
// log2 e / sqrt d), and how many positions of the tile it may see (at least 1).
struct QueryRow {
    Softmax* state;
    const u8* query;
    int visible;
};

// Blocks lie scattered over memory: while one is read, its values and the keys of `later`, the same
// block of the next tile, are on their way. A burst of them would fill the queue of misses.
template <class Kv, int Rows, int Blocks>
FEWER_INLINE void score_blocks(const QueryRow* rows, const u8* const* blocks,
                               const u8* const* later, int head_dim, int first,
                               Float16 (*score)[TILE_BLOCKS]) {
    typename Kv::KeySum sum[Rows][Blocks];
    for (int r = 0; r < Rows; r++)
        for (auto& s : sum[r]) s = Kv::no_score(rows[r].query);
    const int words = head_dim / Kv::KEY_WORD_VALUES;
#pragma GCC unroll 2
    for (int w = 0; w < words; w++) {
        if (later != nullptr)
            for (int b = first; b < first + Blocks; b++) {
                _mm_prefetch(blocks[b] + std::size_t(words + w) * KEY_WORD_BYTES, _MM_HINT_T1);
                _mm_prefetch(later[b] + std::size_t(w) * KEY_WORD_BYTES, _MM_HINT_T1);
            }
        u32 query[Rows];
        for (int r = 0; r < Rows; r++) query[r] = word_of(Kv::query_words(rows[r].query) + w * 4);
        for (int b = 0; b < Blocks; b++)
            for (int r = 0; r < Rows; r++)
                sum[r][b] = Kv::add_key(
                    sum[r][b], blocks[first + b] + std::size_t(w) * KEY_WORD_BYTES, query[r]);
    }
    for (int r = 0; r < Rows; r++)
        for (int b = 0; b < Blocks; b++)
            score[r][first + b] =
                Kv::score(sum[r][b], rows[r].query, blocks[first + b], head_dim);
}

// How a row's weights join what it has: earlier sums shrink, and new ones are in units of `scale`.
struct Joining {
    Float16 rescale;
    float scale;
};

// Add weight x value of `pairs` pairs of positions to 16 * Width outputs starting at d.
template <class Kv, int Rows, int Width>
FEWER_INLINE void add_values(const QueryRow* rows, const u8* const* blocks, int head_dim,
                             const typename Kv::Weight (*weight)[KV_TILE], const Joining* joining,
                             int pairs, int d) {
    typename Kv::ValueSum sum[Rows][Width];
    const auto earlier = [&](int r, int i) {
        return rows[r].state->value[d / 16 + i] * joining[r].rescale;
    };
    for (int r = 0; r < Rows; r++)
        for (int i = 0; i < Width; i++) sum[r][i] = Kv::begin(earlier(r, i));
    for (int p = 0; p < pairs; p++) {
        const std::size_t at = std::size_t(KV_BLOCK + p % 8 * 2) * head_dim + d * 2;
        const u8* v = blocks[p / 8] + at * Kv::VALUE_BYTES;
        for (int r = 0; r < Rows; r++) {
            const u32 w = word_of(weight[r] + p * 2);
            for (int i = 0; i < Width; i++)
                sum[r][i] = Kv::add_value(sum[r][i], v + i * 32 * Kv::VALUE_BYTES, w);
        }
    }
    for (int r = 0; r < Rows; r++)
        for (int i = 0; i < Width; i++)
            rows[r].state->value[d / 16 + i] =
                Kv::end(sum[r][i], earlier(r, i), joining[r].scale);
}

// Scores to weights, in place: mask, move the softmax to its new maximum, exponentiate. Returns
// what the row's earlier sums shrink by.
FEWER_INLINE Float16 weigh(const QueryRow& row, Float16 (&score)[TILE_BLOCKS]) {
    Softmax& state = *row.state;
    for (int b = 0; b < TILE_BLOCKS; b++) {
        const int visible = std::max(0, std::min(KV_BLOCK, row.visible - b * KV_BLOCK));
        score[b] = keep_below(score[b], visible, MASKED);
    }
    const Float16 largest = maximum(maximum(score[0], score[1]), maximum(score[2], score[3]));
    const float m = std::max(state.maximum, max_lanes(largest));
    const Float16 rescale = exp2_lanes(splat(state.maximum - m));
    Float16 sum = splat(0.f);
    for (auto& s : score) {
        s = exp2_lanes(s - splat(m));
        sum = sum + s;
    }
    state.sum = fma(state.sum, rescale, sum);
    state.maximum = m;
    return rescale;
}

// Let `Rows` query rows attend to one tile: up to four blocks.
template <class Kv, int Rows>
inline void attend_tile(const QueryRow* rows, const u8* const* blocks, const u8* const* later,
                        int head_dim) {
    int longest = 0;
    for (int r = 0; r < Rows; r++) longest = std::max(longest, rows[r].visible);
    longest = std::min(longest, KV_TILE);
    const int used = (longest + KV_BLOCK - 1) / KV_BLOCK;
    Float16 score[Rows][TILE_BLOCKS];
    for (auto& row : score)
        for (auto& s : row) s = splat(MASKED);
    if (used == TILE_BLOCKS && ATTENTION_ROWS > 2)
        score_blocks<Kv, Rows, TILE_BLOCKS>(rows, blocks, later, head_dim, 0, score);
    else
        for (int b = 0; b < used; b++)
            score_blocks<Kv, Rows, 1>(rows, blocks, later, head_dim, b, score);

    alignas(64) typename Kv::Weight weight[Rows][KV_TILE];
    Joining joining[Rows];
    for (int r = 0; r < Rows; r++) {
        joining[r].rescale = weigh(rows[r], score[r]);
        joining[r].scale = Kv::store_weights(score[r], blocks, head_dim, weight[r]);
    }
    const int pairs = (longest + 1) / 2;
    constexpr int width = ATTENTION_ROWS > 2 ? 4 : 2;
    int d = 0;
    for (; d + width * 16 <= head_dim; d += width * 16)
        add_values<Kv, Rows, width>(rows, blocks, head_dim, weight, joining, pairs, d);
    for (; d < head_dim; d += 16)
        add_values<Kv, Rows, 1>(rows, blocks, head_dim, weight, joining, pairs, d);
}

// Let `count` query rows attend to one tile, as many at once as keep their sums in registers.
template <class Kv>
void attend_rows(const QueryRow* rows, int count, const u8* const* blocks, const u8* const* later,
                 int head_dim) {
    const auto next = [&](auto taken) {
        attend_tile<Kv, std::min(taken(), ATTENTION_ROWS)>(rows, blocks, later, head_dim);
        later = nullptr;
        rows += taken();
        count -= taken();
    };
    while (count > 0) {
        if (ATTENTION_ROWS >= 6 && count >= 6)
            next(std::integral_constant<int, 6>());
        else if (ATTENTION_ROWS >= 4 && count >= 4)
            next(std::integral_constant<int, 4>());
        else if (ATTENTION_ROWS >= 3 && count >= 3)
            next(std::integral_constant<int, 3>());
        else if (count >= 2)
            next(std::integral_constant<int, 2>());
        else
            next(std::integral_constant<int, 1>());
    }
}

}  // namespace fewer
