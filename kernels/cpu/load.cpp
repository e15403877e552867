#include "load.h"

#include "check.h"

namespace fewer {

namespace {

struct Target {
    Matrix* matrix;
    int rows, columns;
};

Target matrix_of(Model& m, int layer, int which) {
    const Config& c = m.config;
    if (which == EMBEDDING) return {&m.embedding, c.vocab, c.hidden};
    if (which == HEAD) return {&m.head, c.vocab, c.hidden};
    if (which < QUERY || which > HEAD) refuse("there is no matrix ", which);
    if (layer < 0 || layer >= c.layers) refuse("there is no layer ", layer);
    Layer& l = m.layers[std::size_t(layer)];
    const int query = c.heads * c.head_dim, key = c.kv_heads * c.head_dim;
    switch (which) {
        case QUERY:
            return {&l.query, query, c.hidden};
        case KEY:
            return {&l.key, key, c.hidden};
        case VALUE:
            return {&l.value, key, c.hidden};
        case OUTPUT:
            return {&l.output, c.hidden, query};
        case DOWN:
            return {&l.down, c.hidden, c.feed_forward};
        default:
            return {&l.gate_up, c.feed_forward, c.hidden};
    }
}

struct VectorTarget {
    const float** vector;
    int count;
};

VectorTarget vector_of(Model& m, int layer, int which) {
    const Config& c = m.config;
    if (which == FINAL_NORM) return {&m.final_norm, c.hidden};
    if (which < ATTENTION_NORM || which > FINAL_NORM) refuse("there is no vector ", which);
    if (layer < 0 || layer >= c.layers) refuse("there is no layer ", layer);
    Layer& l = m.layers[std::size_t(layer)];
    const int key = c.kv_heads * c.head_dim;
    switch (which) {
        case ATTENTION_NORM:
            return {&l.attention_norm, c.hidden};
        case FEED_FORWARD_NORM:
            return {&l.feed_forward_norm, c.hidden};
        case QUERY_BIAS:
            return {&l.query_bias, c.heads * c.head_dim};
        case KEY_BIAS:
            return {&l.key_bias, key};
        case VALUE_BIAS:
            return {&l.value_bias, key};
        case OUTPUT_BIAS:
            return {&l.output_bias, c.hidden};
        case QUERY_NORM:
            return {&l.query_norm, c.head_dim};
        default:
            return {&l.key_norm, c.head_dim};
    }
}

// Rows of gate and up lie in turns: 32 of gate, then the same 32 of up.
int row_in_pair(int row, bool up) {
    return row / GROUP * (2 * GROUP) + (up ? GROUP : 0) + row % GROUP;
}

void check_once(const Model& m, int layer, int which, const Matrix& matrix, Format format) {
    if (which != UP) {
        if (matrix.data != nullptr) refuse("matrix ", which, " was put already");
        return;
    }
    if (matrix.data == nullptr || matrix.format != format)
        refuse("UP must follow GATE and share its format");
    if (m.layers[std::size_t(layer)].has_up) refuse("matrix ", which, " was put already");
}

}  // namespace

void put_matrix(Model& m, int layer, int which, const u8* raw, std::int64_t bytes,
                int group_bytes) {
    if (group_bytes != Q4_0_BYTES && group_bytes != Q4_1_BYTES && group_bytes != Q8_0_BYTES)
        refuse("a group has 18, 20 or 34 bytes, not ", group_bytes);
    const auto [matrix, rows, columns] = matrix_of(m, layer, which);
    const std::int64_t row_bytes = std::int64_t(columns / GROUP) * group_bytes;
    if (bytes != row_bytes * rows)
        refuse("matrix ", which, ", ", rows, " x ", columns, ", needs ", row_bytes * rows,
               " bytes, not ", bytes);
    const Format format = group_bytes == Q8_0_BYTES ? Format::EIGHT_BIT : Format::FOUR_BIT;
    check_once(m, layer, which, *matrix, format);
    const bool paired = which == GATE || which == UP;
    if (which == UP)
        m.layers[std::size_t(layer)].has_up = true;
    else
        matrix->allocate(m.weights, paired ? 2 * rows : rows, columns, format);
    for (int row = 0; row < rows; row++)
        matrix->put_row(paired ? row_in_pair(row, which == UP) : row, raw + row * row_bytes,
                        group_bytes);
}

void put_vector(Model& m, int layer, int which, const float* values, std::int64_t count) {
    const auto [vector, needed] = vector_of(m, layer, which);
    if (count != needed) refuse("vector ", which, " needs ", needed, " values, not ", count);
    if (*vector != nullptr) refuse("vector ", which, " was put already");
    float* copy = m.weights.take<float>(std::size_t(count));
    std::memcpy(copy, values, std::size_t(count) * sizeof(float));
    *vector = copy;
}

void put_rope(Model& m, const float* cosine, const float* sine, std::int64_t count) {
    const std::int64_t needed = std::int64_t(m.config.max_positions) * (m.config.head_dim / 2);
    if (count != needed) refuse("the rope tables need ", needed, " values each, not ", count);
    if (m.rope_cos != nullptr) refuse("the rope tables were put already");
    float* copies[2] = {m.weights.take<float>(std::size_t(count)),
                        m.weights.take<float>(std::size_t(count))};
    std::memcpy(copies[0], cosine, std::size_t(count) * sizeof(float));
    std::memcpy(copies[1], sine, std::size_t(count) * sizeof(float));
    m.rope_cos = copies[0];
    m.rope_sin = copies[1];
}

void allocate_kv(Model& m, int blocks) {
    // Slots are 32-bit: block * KV_BLOCK + offset.
    if (blocks < 1 || blocks > INT32_MAX / KV_BLOCK)
        refuse("the KV memory cannot have ", blocks, " blocks");
    if (m.kv != nullptr) refuse("the KV memory was allocated already");
    m.allocate_kv(blocks);
}

void check_complete(const Model& m) {
    for (std::size_t i = 0; i < m.layers.size(); i++) {
        const Layer& l = m.layers[i];
        for (const Matrix* w : {&l.query, &l.key, &l.value, &l.output, &l.gate_up, &l.down})
            if (w->data == nullptr) refuse("layer ", std::int64_t(i), " lacks a matrix");
        if (!l.has_up) refuse("layer ", std::int64_t(i), " lacks a matrix");
        if (!l.attention_norm || !l.feed_forward_norm)
            refuse("layer ", std::int64_t(i), " lacks a norm");
    }
    if (m.embedding.data == nullptr) refuse("the embedding is missing");
    if (m.final_norm == nullptr) refuse("the final norm is missing");
    if (m.rope_cos == nullptr) refuse("the rope tables are missing");
    if (m.kv == nullptr) refuse("the KV memory is not allocated");
}

}  // namespace fewer
