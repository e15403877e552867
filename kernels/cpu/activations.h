// Rows of activations as int8 in groups of 32, the right-hand side of every matrix product.
#pragma once
#include "abi.h"
#include "memory.h"
#include "vector.h"

namespace fewer {

struct Activations {
    static constexpr float SMALLEST = 1e-30f;  // below it 127 / largest would be infinite

    int columns = 0, groups = 0;
    std::int8_t* values = nullptr;  // [rows][columns]
    float* scale = nullptr;         // [rows][groups]
    float* scaled_sum = nullptr;    // [rows][groups], scale * sum(values): meets a weight's minimum
    int* offset = nullptr;          // [rows][groups], -128 * sum(values): undoes Q8's unsigned form

    void allocate(Arena& arena, int rows, int width) {
        columns = width;
        groups = width / GROUP;
        values = arena.take<std::int8_t>(std::size_t(rows) * columns);
        scale = arena.take<float>(std::size_t(rows) * groups);
        scaled_sum = arena.take<float>(std::size_t(rows) * groups);
        offset = arena.take<int>(std::size_t(rows) * groups);
    }

    // Quantise 32 floats into group g of a row: symmetric, round to nearest even. Values are
    // -127 to 127; a NaN becomes some byte, its group's scale tells.
    FEWER_INLINE void set(int row, int g, Float16 first, Float16 second) {
        const float largest = max_lanes(maximum(absolute(first), absolute(second)));
        const float inverse = largest > SMALLEST ? 127.f / largest : 0.f;
        const Int16 a = to_int(first * splat(inverse)), b = to_int(second * splat(inverse));
        std::int8_t* out = values + std::size_t(row) * columns + g * GROUP;
        store_int8(out, a);
        store_int8(out + 16, b);
        const int sum = sum_lanes(a + b);
        const std::size_t at = std::size_t(row) * groups + g;
        scale[at] = largest / 127.f;
        scaled_sum[at] = scale[at] * float(sum);
        offset[at] = int(u32(sum) * u32(-128));  // unsigned: out of a NaN comes any sum
    }

    void set_row(int row, const float* x) {
        for (int g = 0; g < groups; g++) set(row, g, load(x + g * GROUP), load(x + g * GROUP + 16));
    }

    // RMSNorm (Zhang and Sennrich, 2019), then quantise.
    void set_row_normed(int row, const float* x, const float* weight, float epsilon) {
        Float16 squares = splat(0.f);
        for (int i = 0; i < columns; i += 16) squares = fma(load(x + i), load(x + i), squares);
        const float mean = sum_lanes(squares) / float(columns);
        const Float16 r = splat(1.f / __builtin_sqrtf(mean + epsilon));
        for (int g = 0; g < groups; g++) {
            const int i = g * GROUP;
            set(row, g, load(x + i) * r * load(weight + i),
                load(x + i + 16) * r * load(weight + i + 16));
        }
    }
};

}  // namespace fewer
