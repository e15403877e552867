// Paged attention over bf16 keys and values, with online softmax (Milakov and Gimelshein, 2018).
//
// A KV block holds 16 positions of one head of one layer:
//   K [D/2][16 positions][2 d]    so that one dot-pairs instruction scores 16 positions
//   V [8 position pairs][D][2]    so that one instruction adds two positions to 16 outputs
//
// Order of work, the same for every row whatever shares the step: tiles of 64 positions from
// position 0; splits of 1,024 positions, each with its own softmax, merged in order. A tile or
// a pair of positions beyond a row's end contributes exactly nothing.
#pragma once
#include "vector.h"

namespace fewer {

constexpr int KV_BLOCK = 16;      // positions in a block
constexpr int KV_TILE = 64;       // positions in a tile
constexpr int KV_SPLIT = 1024;    // positions in a split
constexpr int MAX_HEAD_DIM = 128;

inline std::size_t kv_block_values(int head_dim) { return std::size_t(2) * KV_BLOCK * head_dim; }

// Write one position's key or value (head_dim floats) into its block.
inline void store_key(bf16* block, int offset, const float* key, int head_dim) {
    alignas(64) bf16 narrow[MAX_HEAD_DIM];
    for (int d = 0; d < head_dim; d += 16) store_bf16(narrow + d, load(key + d));
    for (int d = 0; d < head_dim; d += 2)
        std::memcpy(block + std::size_t(d) * KV_BLOCK + offset * 2, narrow + d, 4);
}

inline void store_value(bf16* block, int offset, const float* value, int head_dim) {
    alignas(64) bf16 narrow[MAX_HEAD_DIM];
    for (int d = 0; d < head_dim; d += 16) store_bf16(narrow + d, load(value + d));
    bf16* pairs = block + std::size_t(KV_BLOCK) * head_dim + std::size_t(offset / 2) * 2 * head_dim + offset % 2;
    for (int d = 0; d < head_dim; d++) pairs[d * 2] = narrow[d];
}

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
        const Float16 mine = exp2_lanes(splat(maximum - m)), theirs = exp2_lanes(splat(later.maximum - m));
        sum = fma(sum, mine, later.sum * theirs);
        for (int i = 0; i < head_dim / 16; i++) value[i] = fma(value[i], mine, later.value[i] * theirs);
        maximum = m;
    }
};

// One query row in one tile: its softmax, its query (head_dim bf16, scaled by log2 e / sqrt d),
// and how many positions of the tile it may see (at least 1).
struct QueryRow {
    Softmax* state;
    const bf16* query;
    int visible;
};

template <int Rows, int Blocks, int D>
FEWER_INLINE void score_blocks(const QueryRow* rows, const bf16* const* blocks, int first, Float16 (*score)[4]) {
    Float16 sum[Rows][Blocks];
    for (auto& row : sum) for (auto& s : row) s = splat(0.f);
#pragma GCC unroll 2
    for (int d = 0; d < D; d += 2) {
        u32 query[Rows];
        for (int r = 0; r < Rows; r++) std::memcpy(&query[r], rows[r].query + d, 4);
        for (int b = 0; b < Blocks; b++)
            for (int r = 0; r < Rows; r++)
                sum[r][b] = dot_pairs(sum[r][b], blocks[first + b] + std::size_t(d) * KV_BLOCK, query[r]);
    }
    for (int r = 0; r < Rows; r++) for (int b = 0; b < Blocks; b++) score[r][first + b] = sum[r][b];
}

// Add weight x value of `pairs` pairs of positions to 16 * Width outputs starting at d.
template <int Rows, int Width, int D>
FEWER_INLINE void add_values(const QueryRow* rows, const bf16* const* blocks, const bf16 (*weight)[KV_TILE],
                             const Float16* rescale, int pairs, int d) {
    Float16 sum[Rows][Width];
    for (int r = 0; r < Rows; r++)
        for (int i = 0; i < Width; i++) sum[r][i] = rows[r].state->value[d / 16 + i] * rescale[r];
    for (int p = 0; p < pairs; p++) {
        const bf16* v = blocks[p / 8] + std::size_t(KV_BLOCK) * D + std::size_t(p % 8) * 2 * D + d * 2;
        for (int r = 0; r < Rows; r++) {
            u32 w;
            std::memcpy(&w, weight[r] + p * 2, 4);
            for (int i = 0; i < Width; i++) sum[r][i] = dot_pairs(sum[r][i], v + i * 32, w);
        }
    }
    for (int r = 0; r < Rows; r++) for (int i = 0; i < Width; i++) rows[r].state->value[d / 16 + i] = sum[r][i];
}

// Let `Rows` query rows attend to one tile: up to four blocks of 16 positions.
template <int Rows, int D>
inline void attend_tile(const QueryRow* rows, const bf16* const* blocks) {
    int longest = 0;
    for (int r = 0; r < Rows; r++) longest = std::max(longest, rows[r].visible);
    longest = std::min(longest, KV_TILE);
    const int used = (longest + KV_BLOCK - 1) / KV_BLOCK;
    Float16 score[Rows][4];
    for (auto& row : score) for (auto& s : row) s = splat(MASKED);
    if (used == 4 && ATTENTION_ROWS > 2) score_blocks<Rows, 4, D>(rows, blocks, 0, score);
    else for (int b = 0; b < used; b++) score_blocks<Rows, 1, D>(rows, blocks, b, score);

    alignas(64) bf16 weight[Rows][KV_TILE];
    Float16 rescale[Rows];
    for (int r = 0; r < Rows; r++) {
        Softmax& state = *rows[r].state;
        for (int b = 0; b < 4; b++) {
            const int visible = std::max(0, std::min(KV_BLOCK, rows[r].visible - b * KV_BLOCK));
            score[r][b] = keep_below(score[r][b], visible, MASKED);
        }
        const Float16 largest = maximum(maximum(score[r][0], score[r][1]), maximum(score[r][2], score[r][3]));
        const float m = std::max(state.maximum, max_lanes(largest));
        rescale[r] = exp2_lanes(splat(state.maximum - m));
        Float16 sum = splat(0.f);
        for (int b = 0; b < 4; b++) {
            const Float16 w = exp2_lanes(score[r][b] - splat(m));
            store_bf16(weight[r] + b * KV_BLOCK, w);
            sum = sum + w;
        }
        state.sum = fma(state.sum, rescale[r], sum);
        state.maximum = m;
    }
    const int pairs = (longest + 1) / 2;
    constexpr int width = ATTENTION_ROWS > 2 ? 4 : 2;
    int d = 0;
    for (; d + width * 16 <= D; d += width * 16) add_values<Rows, width, D>(rows, blocks, weight, rescale, pairs, d);
    for (; d < D; d += 16) add_values<Rows, 1, D>(rows, blocks, weight, rescale, pairs, d);
}

template <int D>
inline void attend_rows(const QueryRow* rows, int count, const bf16* const* blocks) {
    while (count > 0) {
        int taken;
        if (ATTENTION_ROWS >= 6 && count >= 6) attend_tile<std::min(6, ATTENTION_ROWS), D>(rows, blocks), taken = 6;
        else if (ATTENTION_ROWS >= 4 && count >= 4) attend_tile<std::min(4, ATTENTION_ROWS), D>(rows, blocks), taken = 4;
        else if (ATTENTION_ROWS >= 3 && count >= 3) attend_tile<std::min(3, ATTENTION_ROWS), D>(rows, blocks), taken = 3;
        else if (count >= 2) attend_tile<2, D>(rows, blocks), taken = 2;
        else attend_tile<1, D>(rows, blocks), taken = 1;
        rows += taken;
        count -= taken;
    }
}

inline void attend(int head_dim, const QueryRow* rows, int count, const bf16* const* blocks) {
    switch (head_dim) {
        case 64: return attend_rows<64>(rows, count, blocks);
        case 80: return attend_rows<80>(rows, count, blocks);
        case 96: return attend_rows<96>(rows, count, blocks);
        default: return attend_rows<128>(rows, count, blocks);
    }
}

}  // namespace fewer
