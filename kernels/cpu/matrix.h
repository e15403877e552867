// Weights in blocks of 32 rows, GGUF's own 4- and 8-bit values re-ordered and never re-quantised.
//
// One int8 dot product instruction consumes 4 consecutive k of 16 rows, so a block stores, for
// each group of 32 k, the 4-byte words of 16 rows side by side, first of one half of its rows,
// then of the other. A block is read once, from its start to its end: memory likes that best.
//
//   FOUR_BIT   per group: 32 fp16 scales, 32 fp16 minima, then for each half 4 x 64 bytes of
//              nibbles (low: k 0-15, high: k 16-31, GGUF's order). w = scale * nibble + minimum.
//              Q4_1 as it is; Q4_0 with minimum = -8 * scale, which fp16 holds exactly.
//   EIGHT_BIT  per group: 32 fp16 scales, then for each half 8 x 64 bytes of value + 128.
//              w = scale * (byte - 128). Q8_0 as it is.
#pragma once
#include <cstddef>

#include "activations.h"
#include "memory.h"

namespace fewer {

enum class Format : int { FOUR_BIT = 0, EIGHT_BIT = 1 };

constexpr int BLOCK_ROWS = 32, HALF_ROWS = 16;
constexpr int Q4_0_BYTES = 18, Q4_1_BYTES = 20, Q8_0_BYTES = 34;  // GGUF: one group of one row

// Bytes of a group: what comes before the values, the values of one half, and all of it.
constexpr int header_bytes(Format f) { return f == Format::EIGHT_BIT ? 64 : 128; }
constexpr int half_bytes(Format f) { return f == Format::EIGHT_BIT ? 512 : 256; }
constexpr int group_bytes(Format f) { return header_bytes(f) + 2 * half_bytes(f); }

struct Matrix {
    int rows = 0;  // a multiple of 32: those beyond the model's are zero
    int groups = 0;
    Format format = Format::FOUR_BIT;
    std::size_t block_bytes = 0;
    u8* data = nullptr;

    void allocate(Arena& arena, int row_count, int columns, Format f) {
        rows = (row_count + BLOCK_ROWS - 1) / BLOCK_ROWS * BLOCK_ROWS;
        groups = columns / GROUP;
        format = f;
        block_bytes = std::size_t(groups) * group_bytes(f);
        data = arena.take<u8>(std::size_t(rows / BLOCK_ROWS) * block_bytes);
    }

    const u8* block(int b) const { return data + std::size_t(b) * block_bytes; }

    // Place one GGUF row: `raw` holds `groups` groups of `raw_bytes` (18, 20 or 34) bytes.
    void put_row(int row, const u8* raw, int raw_bytes) {
        const int lane = row % BLOCK_ROWS;
        u8* group = data + std::size_t(row / BLOCK_ROWS) * block_bytes;
        for (int g = 0; g < groups; g++, raw += raw_bytes, group += group_bytes(format)) {
            if (raw_bytes == Q8_0_BYTES)
                put_eight_bit(group, lane, raw);
            else
                put_four_bit(group, lane, raw, raw_bytes);
        }
    }

    // Dequantise one row (an embedding): columns floats.
    void get_row(int row, float* out) const {
        const int lane = row % BLOCK_ROWS;
        const u8* group = block(row / BLOCK_ROWS);
        for (int g = 0; g < groups; g++, out += GROUP, group += group_bytes(format)) {
            if (format == Format::EIGHT_BIT)
                get_eight_bit(group, lane, out);
            else
                get_four_bit(group, lane, out);
        }
    }

 private:
    static float half_at(const u8* p) {
        half bits;
        std::memcpy(&bits, p, 2);
        return _cvtsh_ss(bits);
    }

    // Where a row's words start: word j of it is 64 * j bytes on.
    static std::size_t words_at(Format f, int lane) {
        return std::size_t(header_bytes(f) + lane / HALF_ROWS * half_bytes(f) +
                           lane % HALF_ROWS * 4);
    }

    static void put_eight_bit(u8* group, int lane, const u8* raw) {
        std::memcpy(group + lane * 2, raw, 2);
        u8* out = group + words_at(Format::EIGHT_BIT, lane);
        for (int j = 0; j < 8; j++) {
            u32 word;
            std::memcpy(&word, raw + 2 + j * 4, 4);
            word ^= 0x80808080u;  // signed to value + 128
            std::memcpy(out + j * 64, &word, 4);
        }
    }

    static void put_four_bit(u8* group, int lane, const u8* raw, int raw_bytes) {
        std::memcpy(group + lane * 2, raw, 2);
        half minimum;
        if (raw_bytes == Q4_1_BYTES)
            std::memcpy(&minimum, raw + 2, 2);
        else
            minimum = _cvtss_sh(-8.f * half_at(raw), _MM_FROUND_TO_NEAREST_INT);
        std::memcpy(group + BLOCK_ROWS * 2 + lane * 2, &minimum, 2);
        u8* out = group + words_at(Format::FOUR_BIT, lane);
        const u8* nibbles = raw + raw_bytes - 16;
        for (int j = 0; j < 4; j++) std::memcpy(out + j * 64, nibbles + j * 4, 4);
    }

    static void get_eight_bit(const u8* group, int lane, float* out) {
        const float scale = half_at(group + lane * 2);
        const u8* in = group + words_at(Format::EIGHT_BIT, lane);
        for (int k = 0; k < GROUP; k++) out[k] = scale * float(int(in[k / 4 * 64 + k % 4]) - 128);
    }

    static void get_four_bit(const u8* group, int lane, float* out) {
        const float scale = half_at(group + lane * 2);
        const float minimum = half_at(group + BLOCK_ROWS * 2 + lane * 2);
        const u8* in = group + words_at(Format::FOUR_BIT, lane);
        for (int k = 0; k < 16; k++) {
            const u8 pair = in[k / 4 * 64 + k % 4];
            out[k] = __builtin_fmaf(scale, float(pair & 15), minimum);
            out[k + 16] = __builtin_fmaf(scale, float(pair >> 4), minimum);
        }
    }
};

}  // namespace fewer
