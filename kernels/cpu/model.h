// What one model is: its shape, its packed weights, its rope tables and its KV memory.
#pragma once
#include <memory>
#include <vector>

#include "attention.h"
#include "matrix.h"

namespace fewer {

// The C ABI's view of a model; binding.py mirrors it field by field.
struct Config {
    std::int32_t layers, hidden, heads, kv_heads, head_dim, feed_forward, vocab;
    std::int32_t max_rows;       // rows of a step, at most
    std::int32_t max_positions;  // rope tables' length
    std::int32_t threads;
    std::int32_t no_rope_interval;  // every n-th layer has no rotary embedding; 0 for none
    float epsilon;          // of every RMSNorm
    float attention_scale;  // usually 1 / sqrt(head_dim)
};

// Vectors that a model may lack are null.
struct Layer {
    Matrix query, key, value, output, gate_up, down;
    const float *attention_norm = nullptr, *feed_forward_norm = nullptr;
    const float *query_bias = nullptr, *key_bias = nullptr, *value_bias = nullptr, *output_bias = nullptr;
    const float *query_norm = nullptr, *key_norm = nullptr;  // head_dim each
};

struct Model {
    Config config;
    Arena weights;
    std::vector<Layer> layers;
    Matrix embedding, head;
    bool tied = false;
    const float* final_norm = nullptr;
    float *rope_cos = nullptr, *rope_sin = nullptr;  // [max_positions][head_dim / 2]

    std::unique_ptr<Arena> kv_memory;
    bf16* kv = nullptr;  // [layers][blocks][kv_heads][K then V]
    std::int32_t blocks = 0;

    explicit Model(const Config& c) : config(c), layers(std::size_t(c.layers)) {
        const std::size_t table = std::size_t(c.max_positions) * (c.head_dim / 2);
        rope_cos = weights.take<float>(table);
        rope_sin = weights.take<float>(table);
    }

    void allocate_kv(int count) {
        kv_memory = std::make_unique<Arena>();
        blocks = count;
        kv = kv_memory->take<bf16>(std::size_t(config.layers) * count * config.kv_heads * kv_block_values(config.head_dim));
    }

    bf16* kv_block(int layer, int block, int kv_head) const {
        const std::size_t at = (std::size_t(layer) * blocks + block) * config.kv_heads + kv_head;
        return kv + at * kv_block_values(config.head_dim);
    }

    const Matrix& output_head() const { return tied ? embedding : head; }
};

}  // namespace fewer
