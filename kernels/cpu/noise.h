// Counter-based noise: Philox4x64-10 (Salmon et al., SC 2011), as engine/sampling/noise.py states.
#pragma once
#include <cmath>

#include "vector.h"

namespace fewer {

// The noise of eight neighbouring tokens, 32 bits each, at one position under one seed.
struct NoiseBlock {
    std::uint32_t word[8];
};

FEWER_INLINE NoiseBlock noise_of(std::uint64_t seed, std::int64_t position, int first_token) {
    std::uint64_t c0 = std::uint64_t(1 + first_token / 8), c1 = std::uint64_t(position);
    std::uint64_t c2 = 0, c3 = 0, k0 = seed, k1 = 0;
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {
        const auto a = static_cast<unsigned __int128>(0xD2E7470EE14C6C93u) * c0;
        const auto b = static_cast<unsigned __int128>(0xCA5A826395121157u) * c2;
        c0 = std::uint64_t(b >> 64) ^ c1 ^ k0;
        c2 = std::uint64_t(a >> 64) ^ c3 ^ k1;
        c1 = std::uint64_t(b);
        c3 = std::uint64_t(a);
        k0 += 0x9E3779B97F4A7C15u;
        k1 += 0xBB67AE8584CAA73Bu;
    }
    const std::uint64_t words[4] = {c0, c1, c2, c3};
    NoiseBlock block;
    std::memcpy(block.word, words, sizeof(words));  // the low half first, as x86 stores it
    return block;
}

// Standard exponential noise; its -log is the Gumbel noise.
inline double exponential(u32 word) { return -std::log((double(word) + 0.5) * 0x1p-32); }

constexpr double LARGEST_GUMBEL = 22.88;  // a little above -log(exponential(0xffffffff))

}  // namespace fewer
