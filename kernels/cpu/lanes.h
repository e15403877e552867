// A row of floats, sixteen at a time.
#pragma once
#include <bit>
#include <limits>

#include "vector.h"

namespace fewer {

constexpr float INFINITE = std::numeric_limits<float>::infinity();

// `count` values in memory that may be read, and written, up to a multiple of sixteen.
struct Lanes {
    const float* values;
    int count;

    // Values i .. i+15; minus infinity beyond the last, so that those lose every comparison.
    FEWER_INLINE Float16 at(int i) const {
        const Float16 lanes = load(values + i);
        return i + 16 <= count ? lanes : keep_below(lanes, count - i, -INFINITE);
    }
};

// use(index) for each set bit, lowest first.
template <class Use>
FEWER_INLINE void each_bit(u32 bits, Use use) {
    for (; bits != 0; bits &= bits - 1) use(std::countr_zero(bits));
}

// The lowest index of the largest value. No value is NaN.
inline int first_largest(Lanes row) {
    Float16 most = splat(-INFINITE);
    for (int i = 0; i < row.count; i += 16) most = maximum(most, row.at(i));
    const Float16 best = splat(max_lanes(most));
    for (int i = 0; i < row.count; i += 16)
        if (const u32 hits = lanes_equal(row.at(i), best)) return i + std::countr_zero(hits);
    return 0;
}

}  // namespace fewer
