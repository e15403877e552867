// KV in bf16: 4 bytes for a position's key and value at each place of a head.
#pragma once
#include "kv.h"

namespace fewer {

struct Bf16Kv {
    using Weight = bf16;  // of a position in the softmax
    using KeySum = Float16;
    using ValueSum = Float16;
    static constexpr int KEY_WORD_VALUES = 2;
    static constexpr int VALUE_BYTES = 2;
    static constexpr float LARGEST = 3.38953139e38f;

    static std::size_t block_bytes(int head_dim) {
        return std::size_t(2) * KV_BLOCK * head_dim * sizeof(bf16);
    }
    static std::size_t query_bytes(int head_dim) { return std::size_t(head_dim) * sizeof(bf16); }

    static void store_key(u8* block, int offset, const float* key, int head_dim) {
        alignas(64) bf16 narrow[MAX_HEAD_DIM];
        for (int d = 0; d < head_dim; d += 16) store_bf16(narrow + d, load(key + d));
        for (int d = 0; d < head_dim; d += 2)
            std::memcpy(block + std::size_t(d / 2) * KEY_WORD_BYTES + offset * 4, narrow + d, 4);
    }

    // Values are finite in the cache, always: a masked position has weight 0, and 0 times an
    // infinity or a NaN that a broken sequence left in a block would spoil the block's next owner.
    static void store_value(u8* block, int offset, const float* value, int head_dim) {
        alignas(64) bf16 narrow[MAX_HEAD_DIM];
        for (int d = 0; d < head_dim; d += 16)
            store_bf16(narrow + d, finite(load(value + d), LARGEST));
        bf16* pairs = reinterpret_cast<bf16*>(block) + std::size_t(KV_BLOCK) * head_dim +
                      std::size_t(offset / 2) * 2 * head_dim + offset % 2;
        for (int d = 0; d < head_dim; d++) pairs[d * 2] = narrow[d];
    }

    static void store_query(u8* out, const float* query, float scale, int head_dim) {
        for (int d = 0; d < head_dim; d += 16)
            store_bf16(reinterpret_cast<bf16*>(out) + d, load(query + d) * splat(scale));
    }
    static const u8* query_words(const u8* query) { return query; }

    FEWER_INLINE static KeySum no_score(const u8*) { return splat(0.f); }
    FEWER_INLINE static KeySum add_key(KeySum sum, const u8* keys, u32 query) {
        return dot_pairs(sum, reinterpret_cast<const bf16*>(keys), query);
    }
    FEWER_INLINE static Float16 score(KeySum sum, const u8*, const u8*, int) { return sum; }

    // Returns what the weighted values have to be multiplied by in the end.
    FEWER_INLINE static float store_weights(const Float16* weight, const u8* const*, int,
                                            Weight* out) {
        for (int b = 0; b < TILE_BLOCKS; b++) store_bf16(out + b * KV_BLOCK, weight[b]);
        return 1.f;
    }
    FEWER_INLINE static ValueSum begin(Float16 earlier) { return earlier; }
    FEWER_INLINE static ValueSum add_value(ValueSum sum, const u8* values, u32 weights) {
        return dot_pairs(sum, reinterpret_cast<const bf16*>(values), weights);
    }
    FEWER_INLINE static Float16 end(ValueSum sum, Float16, float) { return sum; }
};

}  // namespace fewer
