// Weights in blocks of 16 rows, GGUF's own 4- and 8-bit values re-ordered and never re-quantised.
//
// One int8 dot product instruction consumes 4 consecutive k of 16 rows, so a block stores, for
// each group of 32 k, the 4-byte words of its 16 rows side by side.
//
//   FOUR_BIT   per group: 4 x 64 bytes of nibbles (low: k 0-15, high: k 16-31, GGUF's order),
//              16 fp16 scales, 16 fp16 minima: 320 bytes. w = scale * nibble + minimum.
//              Q4_1 as it is; Q4_0 with minimum = -8 * scale, which fp16 holds exactly.
//   EIGHT_BIT  all scales of the block (fp16, groups x 16, padded to 64 bytes), then 8 x 64
//              bytes per group of value + 128. w = scale * (byte - 128). Q8_0 as it is.
#pragma once
#include <cstddef>

#include "activations.h"
#include "memory.h"

namespace fewer {

enum class Format : int { FOUR_BIT = 0, EIGHT_BIT = 1 };

constexpr int BLOCK_ROWS = 16;
constexpr int FOUR_BIT_GROUP_BYTES = 320, EIGHT_BIT_GROUP_BYTES = 512;
constexpr int Q4_0_BYTES = 18, Q4_1_BYTES = 20, Q8_0_BYTES = 34;  // GGUF: one group of one row

struct Matrix {
    int rows = 0;  // a multiple of 32: a tile takes two blocks; rows beyond the model's are zero
    int groups = 0;
    Format format = Format::FOUR_BIT;
    std::size_t scales_bytes = 0, block_bytes = 0;
    u8* data = nullptr;

    void allocate(Arena& arena, int row_count, int columns, Format f) {
        rows = (row_count + 31) / 32 * 32;
        groups = columns / GROUP;
        format = f;
        scales_bytes = f == Format::EIGHT_BIT ? (std::size_t(groups) * 32 + 63) / 64 * 64 : 0;
        const int group_bytes =
            f == Format::EIGHT_BIT ? EIGHT_BIT_GROUP_BYTES : FOUR_BIT_GROUP_BYTES;
        block_bytes = scales_bytes + std::size_t(groups) * group_bytes;
        // Two blocks more than needed: the tile prefetches ahead of its last two.
        data = arena.take<u8>(std::size_t(rows / BLOCK_ROWS + 2) * block_bytes);
    }

    const u8* block(int b) const { return data + std::size_t(b) * block_bytes; }

    // Place one GGUF row: `raw` holds `groups` groups of `group_bytes` (18, 20 or 34) bytes.
    void put_row(int row, const u8* raw, int group_bytes) {
        u8* b = data + std::size_t(row / BLOCK_ROWS) * block_bytes;
        const int lane = row % BLOCK_ROWS;
        for (int g = 0; g < groups; g++, raw += group_bytes) {
            if (group_bytes == Q8_0_BYTES)
                put_eight_bit(b, g, lane, raw);
            else
                put_four_bit(b + std::size_t(g) * FOUR_BIT_GROUP_BYTES, lane, raw, group_bytes);
        }
    }

    // Dequantise one row (an embedding): columns floats.
    void get_row(int row, float* out) const {
        const u8* b = block(row / BLOCK_ROWS);
        const int lane = row % BLOCK_ROWS;
        for (int g = 0; g < groups; g++, out += GROUP) {
            if (format == Format::EIGHT_BIT)
                get_eight_bit(b, g, lane, out);
            else
                get_four_bit(b + std::size_t(g) * FOUR_BIT_GROUP_BYTES, lane, out);
        }
    }

 private:
    static float half_at(const u8* p) {
        half bits;
        std::memcpy(&bits, p, 2);
        return _cvtsh_ss(bits);
    }

    void put_eight_bit(u8* b, int g, int lane, const u8* raw) {
        std::memcpy(b + std::size_t(g) * 32 + lane * 2, raw, 2);
        u8* out = b + scales_bytes + std::size_t(g) * EIGHT_BIT_GROUP_BYTES + lane * 4;
        for (int j = 0; j < 8; j++) {
            u32 word;
            std::memcpy(&word, raw + 2 + j * 4, 4);
            word ^= 0x80808080u;  // signed to value + 128
            std::memcpy(out + j * 64, &word, 4);
        }
    }

    static void put_four_bit(u8* out, int lane, const u8* raw, int group_bytes) {
        std::memcpy(out + 256 + lane * 2, raw, 2);
        half minimum;
        if (group_bytes == Q4_1_BYTES)
            std::memcpy(&minimum, raw + 2, 2);
        else
            minimum = _cvtss_sh(-8.f * half_at(raw), _MM_FROUND_TO_NEAREST_INT);
        std::memcpy(out + 288 + lane * 2, &minimum, 2);
        const u8* nibbles = raw + group_bytes - 16;
        for (int j = 0; j < 4; j++) std::memcpy(out + j * 64 + lane * 4, nibbles + j * 4, 4);
    }

    void get_eight_bit(const u8* b, int g, int lane, float* out) const {
        const float scale = half_at(b + std::size_t(g) * 32 + lane * 2);
        const u8* in = b + scales_bytes + std::size_t(g) * EIGHT_BIT_GROUP_BYTES + lane * 4;
        for (int k = 0; k < GROUP; k++) out[k] = scale * float(int(in[k / 4 * 64 + k % 4]) - 128);
    }

    static void get_four_bit(const u8* b, int lane, float* out) {
        const float scale = half_at(b + 256 + lane * 2), minimum = half_at(b + 288 + lane * 2);
        for (int k = 0; k < 16; k++) {
            const u8 pair = b[k / 4 * 64 + lane * 4 + k % 4];
            out[k] = __builtin_fmaf(scale, float(pair & 15), minimum);
            out[k + 16] = __builtin_fmaf(scale, float(pair >> 4), minimum);
        }
    }
};

}  // namespace fewer
