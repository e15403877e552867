// The paged KV memory: bf16 keys and values in blocks of 16 positions of one head of one layer.
//
//   K [D/2][16 positions][2 d]    so that one dot-pairs instruction scores 16 positions
//   V [8 position pairs][D][2]    so that one instruction adds two positions to 16 outputs
#pragma once
#include "abi.h"
#include "vector.h"

namespace fewer {

constexpr int MAX_HEAD_DIM = 128;
constexpr float LARGEST_BF16 = 3.38953139e38f;

inline std::size_t kv_block_values(int head_dim) { return std::size_t(2) * KV_BLOCK * head_dim; }

// Write one position's key or value (head_dim floats) into its block.
inline void store_key(bf16* block, int offset, const float* key, int head_dim) {
    alignas(64) bf16 narrow[MAX_HEAD_DIM];
    for (int d = 0; d < head_dim; d += 16) store_bf16(narrow + d, load(key + d));
    for (int d = 0; d < head_dim; d += 2)
        std::memcpy(block + std::size_t(d) * KV_BLOCK + offset * 2, narrow + d, 4);
}

// Values are finite in the cache, always: a masked position has weight 0, and 0 times an infinity
// or a NaN that a broken sequence left in a block would spoil the block's next owner.
inline void store_value(bf16* block, int offset, const float* value, int head_dim) {
    alignas(64) bf16 narrow[MAX_HEAD_DIM];
    for (int d = 0; d < head_dim; d += 16)
        store_bf16(narrow + d, finite(load(value + d), LARGEST_BF16));
    bf16* pairs = block + std::size_t(KV_BLOCK) * head_dim +
                  std::size_t(offset / 2) * 2 * head_dim + offset % 2;
    for (int d = 0; d < head_dim; d++) pairs[d * 2] = narrow[d];
}

}  // namespace fewer
