// What one model is: its shape, its packed weights, its rope tables and its KV memory.
#pragma once
#include <memory>
#include <vector>

#include "abi.h"
#include "kv.h"
#include "matrix.h"

namespace fewer {

// Vectors that a model may lack are null.
struct Layer {
    Matrix query, key, value, output, gate_up, down;
    bool has_up = false;  // gate_up holds both of its halves
    const float *attention_norm = nullptr, *feed_forward_norm = nullptr;
    const float *query_bias = nullptr, *key_bias = nullptr, *value_bias = nullptr;
    const float* output_bias = nullptr;
    const float *query_norm = nullptr, *key_norm = nullptr;  // [head_dim]
};

struct Model {
    Config config;
    Arena weights;
    std::vector<Layer> layers;
    Matrix embedding, head;  // no head: the embedding is the output layer too
    const float* final_norm = nullptr;
    const float *rope_cos = nullptr, *rope_sin = nullptr;  // [max_positions][head_dim / 2]

    std::unique_ptr<Arena> kv_memory;
    const KvFormat& kv_format;
    const std::size_t kv_block_bytes;
    u8* kv = nullptr;  // [blocks][layers][kv_heads][K then V]: a sequence touches what it uses
    std::int32_t blocks = 0;

    explicit Model(const Config& c)
        : config(c),
          layers(std::size_t(c.layers)),
          kv_format(fewer::kv_format(c.kv)),
          kv_block_bytes(kv_format.block_bytes(c.head_dim)) {}

    void allocate_kv(int count) {
        auto memory = std::make_unique<Arena>();
        kv = memory->take<u8>(std::size_t(config.layers) * std::size_t(count) *
                              std::size_t(config.kv_heads) * kv_block_bytes);
        kv_memory = std::move(memory);
        blocks = count;
    }

    u8* kv_block(int layer, int block, int kv_head) const {
        const std::size_t at = std::size_t(block) * config.layers + layer;
        return kv + (at * config.kv_heads + kv_head) * kv_block_bytes;
    }

    bool has_rope(int layer) const {
        return config.no_rope_interval == 0 || (layer + 1) % config.no_rope_interval != 0;
    }

    const Matrix& output_head() const { return head.data != nullptr ? head : embedding; }
};

}  // namespace fewer
