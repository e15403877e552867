// Taking a model's weights, piece by piece and each once.
#pragma once
#include "model.h"

namespace fewer {

// See abi.h. Each throws, and has changed nothing, when the piece is not what the shape asks for.
void put_matrix(Model& model, int layer, int which, const u8* raw, std::int64_t bytes,
                int group_bytes);
void put_vector(Model& model, int layer, int which, const float* values, std::int64_t count);
void put_rope(Model& model, const float* cosine, const float* sine, std::int64_t count);
void allocate_kv(Model& model, int blocks);

// Throws naming the first piece that is missing.
void check_complete(const Model& model);

}  // namespace fewer
