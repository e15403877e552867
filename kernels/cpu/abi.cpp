#include "abi.h"

#include <cstring>
#include <stdexcept>
#include <string>

using namespace fewer;

struct fewer_cpu_model {
    Model model;
    std::unique_ptr<Stepper> stepper;  // made once the weights are in
    explicit fewer_cpu_model(const Config& config) : model(config) {}
};

namespace {

thread_local std::string last_error;

void require(bool holds, const std::string& otherwise) {
    if (!holds) throw std::invalid_argument(otherwise);
}

template <class Body>
int guarded(Body body) {
    try {
        body();
        return 0;
    } catch (const std::bad_alloc&) {
        last_error = "out of memory";
    } catch (const std::exception& error) {
        last_error = error.what();
    }
    return -1;
}

std::string number(std::int64_t n) { return std::to_string(n); }

void check_config(const Config& c) {
    require(c.layers > 0 && c.layers <= 1024, "layers must be 1 to 1024, not " + number(c.layers));
    require(c.hidden > 0 && c.hidden % 32 == 0, "hidden must be a multiple of 32, not " + number(c.hidden));
    require(c.feed_forward > 0 && c.feed_forward % 32 == 0, "feed_forward must be a multiple of 32, not " + number(c.feed_forward));
    require(c.head_dim == 64 || c.head_dim == 80 || c.head_dim == 96 || c.head_dim == 128, "head_dim must be 64, 80, 96 or 128, not " + number(c.head_dim));
    require(c.kv_heads > 0 && c.heads % c.kv_heads == 0, "heads must be a multiple of kv_heads, not " + number(c.heads) + " and " + number(c.kv_heads));
    require(c.heads / c.kv_heads <= 32, "at most 32 query heads may share a KV head, not " + number(c.heads / c.kv_heads));
    require(c.heads * c.head_dim % 32 == 0, "heads x head_dim must be a multiple of 32");
    require(c.vocab > 0, "vocab must be above 0");
    require(c.max_rows > 0 && c.max_rows <= 65536, "max_rows must be 1 to 65536, not " + number(c.max_rows));
    require(c.max_positions > 0, "max_positions must be above 0");
    require(c.no_rope_interval >= 0, "no_rope_interval must not be negative");
    require(c.threads > 0 && c.threads <= 256, "threads must be 1 to 256, not " + number(c.threads));
}

struct Target {
    Matrix* matrix;
    int rows, columns;
};

Target matrix_of(Model& m, int layer, int which) {
    const Config& c = m.config;
    require(which >= QUERY && which <= HEAD, "no such matrix: " + number(which));
    const int q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
    if (which == EMBEDDING) return {&m.embedding, c.vocab, c.hidden};
    if (which == HEAD) return {&m.head, c.vocab, c.hidden};
    require(layer >= 0 && layer < c.layers, "no such layer: " + number(layer));
    Layer& l = m.layers[std::size_t(layer)];
    switch (which) {
        case QUERY: return {&l.query, q, c.hidden};
        case KEY: return {&l.key, kv, c.hidden};
        case VALUE: return {&l.value, kv, c.hidden};
        case OUTPUT: return {&l.output, c.hidden, q};
        case DOWN: return {&l.down, c.hidden, c.feed_forward};
        default: return {&l.gate_up, c.feed_forward, c.hidden};
    }
}

void put_matrix(Model& m, int layer, int which, const u8* raw, std::int64_t bytes, int group_bytes) {
    require(group_bytes == Q4_0_BYTES || group_bytes == Q4_1_BYTES || group_bytes == Q8_0_BYTES, "a group has 18, 20 or 34 bytes, not " + number(group_bytes));
    const auto [matrix, rows, columns] = matrix_of(m, layer, which);
    const std::int64_t row_bytes = std::int64_t(columns / GROUP) * group_bytes;
    require(bytes == row_bytes * rows, "a matrix of " + number(rows) + " x " + number(columns) + " needs " + number(row_bytes * rows) + " bytes, not " + number(bytes));
    const Format format = group_bytes == Q8_0_BYTES ? Format::EIGHT_BIT : Format::FOUR_BIT;
    const bool half_of_pair = which == GATE || which == UP;
    if (which == UP) require(matrix->data != nullptr && matrix->format == format, "UP must follow GATE and share its format");
    else {
        require(matrix->data == nullptr, "matrix " + number(which) + " was put twice");
        matrix->allocate(m.weights, half_of_pair ? 2 * rows : rows, columns, format);
    }
    for (int r = 0; r < rows; r++) {
        // 32 rows of gate, then the same 32 of up.
        const int row = half_of_pair ? r / 32 * 64 + (which == UP ? 32 : 0) + r % 32 : r;
        matrix->put_row(row, raw + std::int64_t(r) * row_bytes, group_bytes);
    }
    if (which == HEAD) m.tied = false;
}

void put_vector(Model& m, int layer, int which, const float* values, std::int64_t count) {
    const Config& c = m.config;
    require(which >= ATTENTION_NORM && which <= FINAL_NORM, "no such vector: " + number(which));
    require(which == FINAL_NORM || (layer >= 0 && layer < c.layers), "no such layer: " + number(layer));
    Layer& l = m.layers[std::size_t(which == FINAL_NORM ? 0 : layer)];
    const float** targets[] = {&l.attention_norm, &l.feed_forward_norm, &l.query_bias, &l.key_bias, &l.value_bias, &l.output_bias, &l.query_norm, &l.key_norm, &m.final_norm};
    const int kv = c.kv_heads * c.head_dim;
    const int sizes[] = {c.hidden, c.hidden, c.heads * c.head_dim, kv, kv, c.hidden, c.head_dim, c.head_dim, c.hidden};
    require(count == sizes[which], "vector " + number(which) + " needs " + number(sizes[which]) + " values, not " + number(count));
    float* copy = m.weights.take<float>(std::size_t(count));
    std::memcpy(copy, values, std::size_t(count) * 4);
    *targets[which] = copy;
}

void check_complete(const Model& m) {
    require(m.embedding.data != nullptr && m.final_norm != nullptr, "the embedding or the final norm is missing");
    for (const Layer& l : m.layers)
        for (const Matrix* w : {&l.query, &l.key, &l.value, &l.output, &l.gate_up, &l.down})
            require(w->data != nullptr && l.attention_norm && l.feed_forward_norm, "a layer's weights are incomplete");
    require(m.kv != nullptr, "the KV memory was not allocated");
}

void check_segment(const Model& m, const Batch& b, int s) {
    const int first = b.query_start[s], end = b.query_start[s + 1];
    require(first < end && end <= b.rows, "segment " + number(s) + " has no rows, or rows beyond the batch");
    const int last = b.positions[end - 1];
    require(b.context_len[s] == last + 1, "context_len of segment " + number(s) + " is " + number(b.context_len[s]) + ", its last position " + number(last));
    for (int row = first; row < end; row++) {
        require(b.tokens[row] >= 0 && b.tokens[row] < m.config.vocab, "token " + number(b.tokens[row]) + " is outside the vocabulary");
        require(b.positions[row] == last - (end - 1 - row) && b.positions[row] >= 0 && last < m.config.max_positions, "positions of segment " + number(s) + " are not consecutive, or beyond " + number(m.config.max_positions));
        const int block = b.positions[row] / KV_BLOCK;
        require(block < b.table_width, "block_table is too narrow for segment " + number(s));
        require(b.slots[row] == b.block_table[s * b.table_width + block] * KV_BLOCK + b.positions[row] % KV_BLOCK, "slot of row " + number(row) + " is not where the block table puts it");
    }
    for (int i = 0; i <= last / KV_BLOCK; i++) {
        const int block = b.block_table[s * b.table_width + i];
        require(block >= 0 && block < m.blocks, "block " + number(block) + " of segment " + number(s) + " does not exist");
    }
}

void check_batch(const Model& m, const Batch& b) {
    require(b.rows > 0 && b.rows <= m.config.max_rows, "a step may have 1 to " + number(m.config.max_rows) + " rows, not " + number(b.rows));
    require(b.segments > 0 && b.segments <= b.rows && b.query_start[0] == 0 && b.query_start[b.segments] == b.rows, "query_start does not cover the rows");
    for (int s = 0; s < b.segments; s++) check_segment(m, b, s);
    require(b.samples >= 0 && b.samples <= b.rows, "samples must be 0 to rows");
    for (int i = 0; i < b.samples; i++)
        require(b.sample_rows[i] >= 0 && b.sample_rows[i] < b.rows && (i == 0 || b.sample_rows[i] > b.sample_rows[i - 1]), "sample_rows must ascend within the batch");
}

void check_sample(const SampleRow& row, int vocab) {
    require(row.temperature >= 0 && row.top_k >= 0 && row.top_p > 0, "temperature and top_k must not be negative, top_p must be above 0");
    require(row.logprobs >= -1 && row.logprobs <= MAX_LOGPROBS, "logprobs must be -1 to " + number(MAX_LOGPROBS));
    for (const Ids* list : {&row.prompt, &row.output, &row.allowed, &row.bad, &row.ending, &row.bias})
        for (std::int64_t i = 0; i < list->count; i++)
            require(list->ids[i] >= 0 && list->ids[i] < vocab, "token " + number(list->ids[i]) + " of a sampling parameter is outside the vocabulary");
}

}  // namespace

extern "C" {

const char* fewer_cpu_isa() { return ISA_NAME; }
const char* fewer_cpu_error() { return last_error.c_str(); }

fewer_cpu_model* fewer_cpu_create(const Config* config) {
    fewer_cpu_model* made = nullptr;
    guarded([&] {
        check_config(*config);
        made = new fewer_cpu_model(*config);
        made->model.tied = true;
    });
    return made;
}

void fewer_cpu_destroy(fewer_cpu_model* model) { delete model; }

int fewer_cpu_put_matrix(fewer_cpu_model* model, int layer, int which, const void* raw, std::int64_t bytes, int group_bytes) {
    return guarded([&] { put_matrix(model->model, layer, which, static_cast<const u8*>(raw), bytes, group_bytes); });
}

int fewer_cpu_put_vector(fewer_cpu_model* model, int layer, int which, const float* values, std::int64_t count) {
    return guarded([&] { put_vector(model->model, layer, which, values, count); });
}

int fewer_cpu_put_rope(fewer_cpu_model* model, const float* cosine, const float* sine, std::int64_t count) {
    return guarded([&] {
        const Config& c = model->model.config;
        const std::int64_t needed = std::int64_t(c.max_positions) * (c.head_dim / 2);
        require(count == needed, "the rope tables need " + number(needed) + " values each, not " + number(count));
        std::memcpy(model->model.rope_cos, cosine, std::size_t(count) * 4);
        std::memcpy(model->model.rope_sin, sine, std::size_t(count) * 4);
    });
}

int fewer_cpu_allocate_kv(fewer_cpu_model* model, int blocks) {
    return guarded([&] {
        require(blocks > 0, "the KV memory needs at least one block");
        require(model->model.kv == nullptr, "the KV memory was allocated twice");
        model->model.allocate_kv(blocks);
    });
}

int fewer_cpu_step(fewer_cpu_model* model, const Batch* batch, const Outcome* outcome) {
    return guarded([&] {
        if (!model->stepper) {
            check_complete(model->model);
            model->stepper = std::make_unique<Stepper>(model->model);
        }
        check_batch(model->model, *batch);
        for (int i = 0; outcome->rows && i < batch->samples; i++) check_sample(outcome->rows[i], model->model.config.vocab);
        model->stepper->run(*batch, *outcome);
    });
}

}  // extern "C"
