// The plain C interface that binding.py calls through ctypes, and the structs that cross it.
//
// binding.py mirrors the structs field by field. Every function returns 0, or -1 with the reason
// in fewer_cpu_error() (of the calling thread), and then has changed nothing. One model is used
// by one thread at a time; steps use the model's own pool of threads.
#pragma once
#include <cstdint>

namespace fewer {

constexpr int GROUP = 32;     // values that share a scale, as in GGUF's Q4_0, Q4_1 and Q8_0
constexpr int KV_BLOCK = 16;  // positions in a block of the KV memory
constexpr int MAX_LOGPROBS = 20;

struct Config {
    std::int32_t layers, hidden, heads, kv_heads, head_dim, feed_forward, vocab;
    std::int32_t max_rows;       // rows of a step, at most
    std::int32_t max_positions;  // length of the rope tables
    std::int32_t threads;
    std::int32_t kv;                // of fewer_cpu_kv
    std::int32_t no_rope_interval;  // every n-th layer has no rotary embedding; 0 for none
    float epsilon;                  // of every RMSNorm
    float attention_scale;          // usually 1 / sqrt(head_dim)
};

// The flat batch of engine/runner/base.py: `segments` runs of rows laid end to end.
struct Batch {
    std::int32_t rows, segments, table_width, samples;
    const std::int32_t *tokens, *positions, *slots;  // [rows]
    const std::int32_t* query_start;                 // [segments + 1]
    const std::int32_t* context_len;                 // [segments]
    const std::int32_t* block_table;                 // [segments][table_width]
    const std::int32_t* sample_rows;                 // [samples], ascending
};

// A list of token ids; `count` is -1 where there is no list.
struct Ids {
    const std::int32_t* ids;
    std::int64_t count;
};

// How to sample one row. Neutral values are those of engine/protocol/sampling.py.
struct SampleRow {
    std::uint64_t seed;
    std::int64_t position;
    double top_p, min_p;
    double repetition_penalty, presence_penalty, frequency_penalty;
    float temperature;      // 0 is greedy
    std::int32_t top_k;     // 0 keeps all
    std::int32_t logprobs;  // how many alternatives; -1 for no logprobs at all
    std::int32_t padding;
    Ids prompt, output;  // read where a penalty asks for them
    Ids allowed, bad;
    Ids ending;  // masked too: those that would end the output too early
    Ids bias;
    const float* bias_values;
    // [ceil(vocab / 32)], the bit of every token that may come, lowest first; null where all may.
    const std::uint32_t* mask;
};

// The outcome of one. `token` is -1 when no token is left to choose.
struct SampledToken {
    double logprob;  // NaN unless asked for
    std::int32_t token, alternatives;
};

// Where the outcome of a step goes. Without `rows` nothing is sampled; `logits` may be null.
struct Outcome {
    const SampleRow* rows;  // [samples]
    SampledToken* sampled;  // [samples]
    std::int32_t* top_ids;  // [samples][MAX_LOGPROBS]
    float* top_logprobs;    // [samples][MAX_LOGPROBS]
    float* logits;          // [samples][vocab]
};

static_assert(sizeof(Config) == 56 && sizeof(Batch) == 72 && sizeof(SampleRow) == 184);
static_assert(sizeof(SampledToken) == 16 && sizeof(Outcome) == 40);

}  // namespace fewer

extern "C" {

struct fewer_cpu_model;

const char* fewer_cpu_isa();
const char* fewer_cpu_error();

fewer_cpu_model* fewer_cpu_create(const fewer::Config* config);  // null on error
void fewer_cpu_destroy(fewer_cpu_model* model);

enum fewer_cpu_kv { KV_BF16, KV_INT8 };

// Of a layer; the last ones are of the model, and the layer is then ignored.
enum fewer_cpu_matrix { QUERY, KEY, VALUE, OUTPUT, GATE, UP, DOWN, EMBEDDING, HEAD };
enum fewer_cpu_vector {
    ATTENTION_NORM,
    FEED_FORWARD_NORM,
    QUERY_BIAS,
    KEY_BIAS,
    VALUE_BIAS,
    OUTPUT_BIAS,
    QUERY_NORM,
    KEY_NORM,
    FINAL_NORM
};

// A whole matrix from `bytes` bytes of GGUF rows: group_bytes is 18 (Q4_0), 20 (Q4_1) or 34
// (Q8_0). UP comes after GATE and in the same format. No HEAD means tied embeddings.
int fewer_cpu_put_matrix(fewer_cpu_model* model, int layer, int which, const void* raw,
                         std::int64_t bytes, int group_bytes);
int fewer_cpu_put_vector(fewer_cpu_model* model, int layer, int which, const float* values,
                         std::int64_t count);
int fewer_cpu_put_rope(fewer_cpu_model* model, const float* cosine, const float* sine,
                       std::int64_t count);
int fewer_cpu_allocate_kv(fewer_cpu_model* model, int blocks);

// Compute a step and sample from it.
int fewer_cpu_step(fewer_cpu_model* model, const fewer::Batch* batch,
                   const fewer::Outcome* outcome);

}  // extern "C"
