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

constexpr int ROW_TILE = 128;  // rows of activations that stay in cache beside a block of weights

// Multiply BLOCK_ROWS * Blocks rows of weights by rows [row, row + Tokens) of activations, and hand
// the tiles to `sink(column, row, tiles)`.
template <int Blocks, int Tokens, class Sink>
void multiply_blocks(const Matrix& m, int block, int column, const Activations& x, int row,
                     bool streaming, Sink& sink) {
    Tile<Tokens> tiles[Blocks];
    for (int p = 0; p < Blocks; p++) {
        if (m.format == Format::EIGHT_BIT)
            multiply<Format::EIGHT_BIT, Tokens>(m, block + p, x, row, streaming, tiles[p]);
        else
            multiply<Format::FOUR_BIT, Tokens>(m, block + p, x, row, streaming, tiles[p]);
    }
    sink(column, row, tiles);
}

// The same for rows [row, end), up to 8 at a time; the split into 8, 4, ... changes no bit. Eight
// rows unpack the weights half as often, but four keep every sum in a register.
template <int Blocks, class Sink>
void multiply_strip(const Matrix& m, int block, int column, const Activations& x, int row, int end,
                    Sink& sink) {
    const int first = row;
    const bool few = end - row <= 16;
    const auto next = [&](auto tokens) {
        multiply_blocks<Blocks, tokens()>(m, block, column, x, row, row == first, sink);
        row += tokens();
    };
    while (row < end) {
        const int left = end - row;
        if (left >= 8 && few)
            next(std::integral_constant<int, 8>());
        else if (left >= 4)
            next(std::integral_constant<int, 4>());
        else if (left == 3)
            next(std::integral_constant<int, 3>());
        else if (left == 2)
            next(std::integral_constant<int, 2>());
        else
            next(std::integral_constant<int, 1>());
    }
}

// Called by every thread of the pool; a barrier must follow. Columns handed to `sink` count
// rows of weights, from each part's own start.
template <int Blocks, class Sink>
void product(Pool& pool, const Part* parts, int part_count, const Activations& x, int rows,
             Sink sink) {
    constexpr int strip = BLOCK_ROWS * Blocks;
    int strips = 0;
    for (int p = 0; p < part_count; p++) strips += parts[p].matrix->rows / strip;
    const int tiles = (rows + ROW_TILE - 1) / ROW_TILE;
    // Neighbouring strips to one thread where there are many: what it fetches ahead is its own.
    const int chunk = std::clamp(strips * tiles / (8 * pool.threads()), 1, 8);
    pool.each(strips * tiles, chunk, [&](int task) {
        int at = task % strips;
        const Part* part = parts;
        while (at >= part->matrix->rows / strip) at -= part++->matrix->rows / strip;
        const int row = task / strips * ROW_TILE;
        multiply_strip<Blocks>(*part->matrix, at * Blocks, part->column + at * strip, x, row,
                               std::min(rows, row + ROW_TILE), sink);
    });
}

}  // namespace fewer
