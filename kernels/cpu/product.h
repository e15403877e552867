// A whole matrix product, shared out among the threads of the pool.
#pragma once
#include "pool.h"
#include "tile.h"

namespace fewer {

// One of several matrices that read the same activations; its results start at `column`.
struct Part {
    const Matrix* matrix;
    int column;
};

constexpr int ROW_TILE = 96;  // rows of activations that stay in cache beside a block of weights

template <Format F, int Tokens, int Pairs>
__attribute__((noinline)) void multiply_pairs(const Matrix& m, int block, const Activations& x, int row, bool streaming, Tile<Tokens> (&out)[Pairs]) {
    for (int p = 0; p < Pairs; p++) out[p] = multiply<F, Tokens>(m, block + 2 * p, x, row, streaming);
}

// Multiply 32 * Pairs rows of weights by rows [row, end) of activations. `sink(column, row,
// count, tiles)` gets up to 8 rows at a time; the split into 8, 6, 4, ... never changes a bit.
template <int Pairs, class Sink>
void multiply_strip(const Matrix& m, int block, int column, const Activations& x, int row, int end, Sink& sink) {
    const bool wide = end - row >= ROW_TILE;
    const int first = row;
    const auto step = [&](auto tokens) {
        constexpr int count = decltype(tokens)::value;
        Tile<count> tiles[Pairs];
        if (m.format == Format::EIGHT_BIT) multiply_pairs<Format::EIGHT_BIT, count, Pairs>(m, block, x, row, row == first, tiles);
        else multiply_pairs<Format::FOUR_BIT, count, Pairs>(m, block, x, row, row == first, tiles);
        sink(column, row, tiles);
        row += count;
    };
    while (row < end) {
        const int left = end - row;
        if (wide && left >= 6 && left != 8) step(std::integral_constant<int, 6>());  // 12 sums, 2 x 6: the fastest shape
        else if (left >= 8) step(std::integral_constant<int, 8>());
        else if (left >= 6) step(std::integral_constant<int, 6>());
        else if (left >= 4) step(std::integral_constant<int, 4>());
        else if (left == 3) step(std::integral_constant<int, 3>());
        else if (left == 2) step(std::integral_constant<int, 2>());
        else step(std::integral_constant<int, 1>());
    }
}

// Called by every thread of the pool; a barrier must follow. Columns handed to `sink` count
// rows of weights, from each part's own start.
template <int Pairs, class Sink>
void product(Pool& pool, const Part* parts, int part_count, const Activations& x, int rows, Sink sink) {
    constexpr int strip = 32 * Pairs;
    int strips = 0;
    for (int p = 0; p < part_count; p++) strips += parts[p].matrix->rows / strip;
    const int tiles = (rows + ROW_TILE - 1) / ROW_TILE;
    const int chunk = strips > 512 ? 4 : 1;
    pool.each(strips * tiles, chunk, [&](int task) {
        int at = task % strips;
        const Part* part = parts;
        while (at >= part->matrix->rows / strip) at -= part++->matrix->rows / strip;
        const int row = task / strips * ROW_TILE;
        multiply_strip<Pairs>(*part->matrix, at * 2 * Pairs, part->column + at * strip, x, row, std::min(rows, row + ROW_TILE), sink);
    });
}

}  // namespace fewer
