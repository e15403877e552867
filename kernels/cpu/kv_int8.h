// KV in int8 with a float32 scale for each position's key and each position's value, of a head.
//
// After K and V a block has 16 scales of keys, then 16 of values. The query is int8 too, so a score
// is an exact integer times two scales. A value's scale goes into its position's weight; weights
// are int16 in each tile, for int8 would cost more than the values do.
#pragma once
#include "kv.h"

namespace fewer {

struct Int8Kv {
    using Weight = std::int16_t;
    using KeySum = Int16;
    using ValueSum = Int16;
    static constexpr int KEY_WORD_VALUES = 4;
    static constexpr int VALUE_BYTES = 1;
    static constexpr float LARGEST = 3.38953139e38f, SMALLEST = 1e-30f;

    // In front of a query's values.
    struct QueryHead {
        float scale;
        std::int32_t bias;  // what BYTE_BIAS adds to every score, negated
    };

    static std::size_t block_bytes(int head_dim) {
        return std::size_t(2) * KV_BLOCK * (std::size_t(head_dim) + sizeof(float));
    }
    static std::size_t query_bytes(int head_dim) {
        return sizeof(QueryHead) + std::size_t(head_dim);
    }

    static void store_key(u8* block, int offset, const float* key, int head_dim) {
        alignas(64) std::int8_t narrow[MAX_HEAD_DIM];
        store_scale(block, offset, head_dim, quantise(key, head_dim, narrow));
        for (int d = 0; d < head_dim; d++) narrow[d] = std::int8_t(u8(narrow[d]) + BYTE_BIAS);
        for (int d = 0; d < head_dim; d += 4)
            std::memcpy(block + std::size_t(d / 4) * KEY_WORD_BYTES + offset * 4, narrow + d, 4);
    }

    static void store_value(u8* block, int offset, const float* value, int head_dim) {
        alignas(64) std::int8_t narrow[MAX_HEAD_DIM];
        store_scale(block, KV_BLOCK + offset, head_dim, quantise(value, head_dim, narrow));
        u8* pairs = block + std::size_t(KV_BLOCK) * head_dim +
                    std::size_t(offset / 2) * 2 * head_dim + offset % 2;
        for (int d = 0; d < head_dim; d++) pairs[d * 2] = u8(narrow[d]);
    }

    static void store_query(u8* out, const float* query, float scale, int head_dim) {
        auto* values = reinterpret_cast<std::int8_t*>(out + sizeof(QueryHead));
        const float own = quantise(query, head_dim, values);
        int sum = 0;
        for (int d = 0; d < head_dim; d++) sum += values[d];
        const QueryHead head{own * scale, -BYTE_BIAS * sum};
        std::memcpy(out, &head, sizeof head);
    }
    static const u8* query_words(const u8* query) { return query + sizeof(QueryHead); }

    FEWER_INLINE static KeySum no_score(const u8* query) { return splat(head_of(query).bias); }
    FEWER_INLINE static KeySum add_key(KeySum sum, const u8* keys, u32 query) {
        return dot_bytes(sum, keys, query);
    }
    FEWER_INLINE static Float16 score(KeySum sum, const u8* query, const u8* block, int head_dim) {
        return to_float(sum) * splat(head_of(query).scale) * load(scales(block, head_dim));
    }

    FEWER_INLINE static float store_weights(const Float16* weight, const u8* const* blocks,
                                            int head_dim, Weight* out) {
        Float16 scaled[TILE_BLOCKS], most = splat(SMALLEST);
        for (int b = 0; b < TILE_BLOCKS; b++) {
            scaled[b] = weight[b] * load(scales(blocks[b], head_dim) + KV_BLOCK);
            most = maximum(most, scaled[b]);
        }
        const float largest = max_lanes(most);
        for (int b = 0; b < TILE_BLOCKS; b++)
            store_int16(out + b * KV_BLOCK, to_int(scaled[b] * splat(32767.f / largest)));
        return largest / 32767.f;
    }
    FEWER_INLINE static ValueSum begin(Float16) { return splat(0); }
    FEWER_INLINE static ValueSum add_value(ValueSum sum, const u8* values, u32 weights) {
        return dot_wide(sum, reinterpret_cast<const std::int8_t*>(values), weights);
    }
    FEWER_INLINE static Float16 end(ValueSum sum, Float16 earlier, float scale) {
        return fma(to_float(sum), splat(scale), earlier);
    }

 private:
    // Symmetric, to nearest even, -127 to 127. Returns the scale, which is finite whatever comes:
    // a masked position has weight 0, and 0 times an infinity would spoil a block's next owner.
    static float quantise(const float* values, int head_dim, std::int8_t* out) {
        Float16 most = splat(0.f);
        for (int d = 0; d < head_dim; d += 16)
            most = maximum(most, absolute(finite(load(values + d), LARGEST)));
        const float largest = max_lanes(most);
        const Float16 inverse = splat(largest > SMALLEST ? 127.f / largest : 0.f);
        for (int d = 0; d < head_dim; d += 16)
            store_int8(out + d, to_int(finite(load(values + d), LARGEST) * inverse));
        return largest / 127.f;
    }

    static QueryHead head_of(const u8* query) {
        QueryHead head;
        std::memcpy(&head, query, sizeof head);
        return head;
    }
    static const float* scales(const u8* block, int head_dim) {
        return reinterpret_cast<const float*>(block + std::size_t(2) * KV_BLOCK * head_dim);
    }
    static void store_scale(u8* block, int index, int head_dim, float scale) {
        std::memcpy(block + std::size_t(2) * KV_BLOCK * head_dim + index * sizeof(float), &scale,
                    sizeof scale);
    }
};

}  // namespace fewer
