// The next token as a pure function of a row of logits and its parameters.
//
// engine/sampling is the meaning: the same masks, penalties, filters and noise, in the same
// order and in the same precision, so that both choose the same tokens.
#pragma once
#include "abi.h"
#include "filters.h"

namespace fewer {

// Buffers of one thread, as large as the vocabulary once it has sampled a row that needs them.
struct SampleScratch {
    std::vector<float> finite, adjusted, scaled;
    std::vector<std::uint8_t> seen;
    std::vector<std::int32_t> sorted;
    FilterScratch filter;
};

// logits are never written to. A NaN counts as -inf and +inf as the largest float, so that a
// broken row ends in some token beside healthy neighbours. Alternatives go to top_ids and
// top_logprobs, MAX_LOGPROBS long. Throws std::bad_alloc.
SampledToken sample_row(Lanes logits, const SampleRow& row, SampleScratch& scratch,
                        std::int32_t* top_ids, float* top_logprobs);

}  // namespace fewer
