// What crosses the C interface is checked here before anything is done with it.
#pragma once
#include <stdexcept>
#include <string>

#include "abi.h"

namespace fewer {

inline std::string text_of(const char* text) { return text; }
inline std::string text_of(std::int64_t number) { return std::to_string(number); }

// Throws with the parts as its message; binding.py raises NativeError. The message is only put
// together when it is needed: some checks run for every row of every step.
template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
    throw std::invalid_argument((text_of(parts) + ...));
}

void check_config(const Config& config);

// Every index that the step will follow lies inside its array, the vocabulary and the KV memory.
void check_batch(const Config& config, int blocks, const Batch& batch);

void check_outcome(const Config& config, const Batch& batch, const Outcome& outcome);

}  // namespace fewer
