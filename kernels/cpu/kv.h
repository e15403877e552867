// The paged KV memory: blocks of 16 positions of one head of one layer, in one of two formats.
//
//   K [words][16 positions][4 bytes]      so that one instruction scores 16 positions
//   V [8 position pairs][D][2 positions]  so that one instruction adds two positions to 16 outputs
//
// A word is two values of bf16 or four of int8. kv_bf16.h and kv_int8.h say what is in the bytes;
// everything else here and in attention is the same for both.
#pragma once
#include "abi.h"
#include "vector.h"

namespace fewer {

constexpr int MAX_HEAD_DIM = 128;
constexpr int KV_TILE = 64;  // positions that attention takes at a time
constexpr int TILE_BLOCKS = KV_TILE / KV_BLOCK;
constexpr int KEY_WORD_BYTES = KV_BLOCK * 4;  // of 16 positions

struct QueryRow;

// What the memory's owner, the step and attention ask of a format. Keys, values and queries are
// head_dim floats; a query is stored once a step, in query_bytes.
struct KvFormat {
    std::size_t (*block_bytes)(int head_dim);
    std::size_t (*query_bytes)(int head_dim);
    void (*store_key)(u8* block, int offset, const float* key, int head_dim);
    void (*store_value)(u8* block, int offset, const float* value, int head_dim);
    void (*store_query)(u8* out, const float* query, float scale, int head_dim);
    // Let `count` query rows attend to one tile; the one after it is in the blocks of `later`.
    void (*attend_rows)(const QueryRow* rows, int count, const u8* const* blocks,
                        const u8* const* later, int head_dim);
};

const KvFormat& kv_format(int which);  // of fewer_cpu_kv

inline u32 word_of(const void* bytes) {
    u32 word;
    std::memcpy(&word, bytes, 4);
    return word;
}

}  // namespace fewer
