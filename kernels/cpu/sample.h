// The next token as a pure function of a row of logits and its parameters.
//
// engine/sampling is the meaning: the same masks, penalties, filters and noise, in the same
// order and in the same precision, so that both choose the same tokens.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "vector.h"

namespace fewer {

// A list of token ids; `count` is -1 where there is no list.
struct Ids {
    const std::int32_t* ids;
    std::int64_t count;
};

// One row to sample; binding.py mirrors it field by field. Neutral values are those of
// engine/protocol/sampling.py.
struct SampleRow {
    std::uint64_t seed;
    std::int64_t position;
    double top_p, min_p;
    double repetition_penalty, presence_penalty, frequency_penalty;
    float temperature;        // 0 is greedy
    std::int32_t top_k;       // 0 keeps all
    std::int32_t logprobs;    // how many alternatives; -1 for no logprobs at all
    std::int32_t padding;
    Ids prompt, output;       // read where a penalty asks for them
    Ids allowed, bad, ending; // ending: masked ids, those that would end the output too early
    Ids bias;
    const float* bias_values;
};

// The outcome. `token` is -1 when no token is left to choose.
struct SampledToken {
    double logprob;
    std::int32_t token, alternatives;
};

constexpr int MAX_LOGPROBS = 20;

// Buffers of one thread, as large as the vocabulary once it has sampled a row that needs them.
struct SampleScratch {
    std::vector<float> finite, adjusted, scaled;
    std::vector<std::int32_t> kept, level;
    std::vector<double> mass;
    std::vector<std::uint8_t> seen;
};

// logits: float32[vocab], never written to; a NaN counts as -inf and +inf as the largest float,
// so that a broken row ends in some token beside healthy neighbours. Alternatives go to ids and logprobs, MAX_LOGPROBS long.
SampledToken sample_row(const float* logits, int vocab, const SampleRow& row, SampleScratch& scratch,
                        std::int32_t* alternative_ids, float* alternative_logprobs);

}  // namespace fewer
