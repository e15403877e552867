// The plain C interface that binding.py calls through ctypes.
//
// Every function returns 0, or -1 with the reason in fewer_cpu_error() (of the calling thread).
// One model is used by one thread at a time; steps use the model's own pool of threads.
#pragma once
#include <cstdint>

#include "step.h"

extern "C" {

struct fewer_cpu_model;

const char* fewer_cpu_isa();
const char* fewer_cpu_error();

fewer_cpu_model* fewer_cpu_create(const fewer::Config* config);  // null on error
void fewer_cpu_destroy(fewer_cpu_model* model);

// Matrices and vectors of a layer, or of the model (layer is then ignored).
enum fewer_cpu_matrix { QUERY, KEY, VALUE, OUTPUT, GATE, UP, DOWN, EMBEDDING, HEAD };
enum fewer_cpu_vector { ATTENTION_NORM, FEED_FORWARD_NORM, QUERY_BIAS, KEY_BIAS, VALUE_BIAS, OUTPUT_BIAS, QUERY_NORM, KEY_NORM, FINAL_NORM };

// A whole matrix from `bytes` bytes of GGUF rows: group_bytes is 18 (Q4_0), 20 (Q4_1) or 34
// (Q8_0). GATE defines the pair; UP must have the same format. No HEAD means tied embeddings.
int fewer_cpu_put_matrix(fewer_cpu_model* model, int layer, int which, const void* raw, std::int64_t bytes, int group_bytes);
int fewer_cpu_put_vector(fewer_cpu_model* model, int layer, int which, const float* values, std::int64_t count);
int fewer_cpu_put_rope(fewer_cpu_model* model, const float* cosine, const float* sine, std::int64_t count);
int fewer_cpu_allocate_kv(fewer_cpu_model* model, int blocks);

// Compute a step and sample from it.
int fewer_cpu_step(fewer_cpu_model* model, const fewer::Batch* batch, const fewer::Outcome* outcome);

}  // extern "C"
