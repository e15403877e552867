#include "check.h"

#include <cmath>

namespace fewer {

namespace {

void check_range(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value < least || value > most)
        refuse(name, " must be ", least, " to ", most, ", not ", value);
}

void check_multiple(const char* name, std::int64_t value) {
    if (value % GROUP != 0) refuse(name, " must be a multiple of ", GROUP, ", not ", value);
}

// Limits keep every product of two of them far inside an int.
constexpr int MAX_WIDTH = 1 << 17, MAX_FEED_FORWARD = 1 << 19, MAX_VOCAB = 1 << 22;
constexpr int MAX_LAYERS = 1024, MAX_ROWS = 1 << 16, MAX_POSITIONS = 1 << 22, MAX_THREADS = 256;
constexpr int MAX_HEADS = 1024, MAX_QUERIES = 32;

// The positions of a segment's rows count up to its last, one less than its context.
void check_positions(const Config& config, const Batch& b, int s) {
    const int first = b.query_start[s], end = b.query_start[s + 1];
    if (first >= end || end > b.rows || first < 0)
        refuse("query_start gives segment ", s, " no rows, or rows outside the batch");
    const int last = b.positions[end - 1];
    if (last < end - first - 1 || last >= config.max_positions)
        refuse("the last position of segment ", s, " is ", last, "; the model has ",
               config.max_positions);
    if (b.context_len[s] != last + 1)
        refuse("context_len of segment ", s, " is ", b.context_len[s], ", its last position ",
               last);
    for (int row = first; row < end; row++)
        if (b.positions[row] != last - (end - 1 - row))
            refuse("the positions of segment ", s, " are not consecutive");
}

void check_blocks(int blocks, const Batch& b, int s) {
    const int last = b.context_len[s] - 1;
    const std::int32_t* table = b.block_table + std::size_t(s) * std::size_t(b.table_width);
    if (last / KV_BLOCK >= b.table_width)
        refuse("block_table is too narrow for position ", last, " of segment ", s);
    for (int i = 0; i <= last / KV_BLOCK; i++)
        if (table[i] < 0 || table[i] >= blocks)
            refuse("segment ", s, " names block ", table[i], "; there are ", blocks);
    for (int row = b.query_start[s]; row < b.query_start[s + 1]; row++)
        if (b.slots[row] !=
            table[b.positions[row] / KV_BLOCK] * KV_BLOCK + b.positions[row] % KV_BLOCK)
            refuse("the slot of row ", row, " is not where the block table puts it");
}

void check_ids(const char* name, const Ids& list, int vocab) {
    if (list.count > 0 && list.ids == nullptr) refuse(name, " has a count but no ids");
    for (std::int64_t i = 0; i < list.count; i++)
        if (list.ids[i] < 0 || list.ids[i] >= vocab)
            refuse(name, " names token ", list.ids[i], "; the vocabulary has ", vocab);
}

void check_sample(const SampleRow& row, int vocab) {
    if (!(row.temperature >= 0 && std::isfinite(row.temperature)))
        refuse("temperature must be finite and not negative");
    if (row.top_k < 0) refuse("top_k must not be negative, not ", row.top_k);
    if (!(row.top_p > 0)) refuse("top_p must be above 0");
    if (!(row.min_p >= 0 && row.min_p <= 1)) refuse("min_p must be 0 to 1");
    if (!(row.repetition_penalty > 0)) refuse("repetition_penalty must be above 0");
    if (!std::isfinite(row.presence_penalty) || !std::isfinite(row.frequency_penalty))
        refuse("presence_penalty and frequency_penalty must be finite");
    check_range("logprobs", row.logprobs, -1, MAX_LOGPROBS);
    check_ids("prompt", row.prompt, vocab);
    check_ids("output", row.output, vocab);
    check_ids("allowed", row.allowed, vocab);
    check_ids("bad", row.bad, vocab);
    check_ids("ending", row.ending, vocab);
    check_ids("bias", row.bias, vocab);
    if (row.bias.count > 0 && row.bias_values == nullptr) refuse("bias has ids but no values");
}

}  // namespace

void check_config(const Config& c) {
    check_range("layers", c.layers, 1, MAX_LAYERS);
    check_range("hidden", c.hidden, GROUP, MAX_WIDTH);
    check_multiple("hidden", c.hidden);
    check_range("feed_forward", c.feed_forward, GROUP, MAX_FEED_FORWARD);
    check_multiple("feed_forward", c.feed_forward);
    if (c.head_dim != 64 && c.head_dim != 80 && c.head_dim != 96 && c.head_dim != 128)
        refuse("head_dim must be 64, 80, 96 or 128, not ", c.head_dim);
    check_range("heads", c.heads, 1, MAX_HEADS);
    check_range("kv_heads", c.kv_heads, 1, c.heads);
    if (c.heads % c.kv_heads != 0)
        refuse("heads must be a multiple of kv_heads, not ", c.heads, " and ", c.kv_heads);
    check_range("heads / kv_heads", c.heads / c.kv_heads, 1, MAX_QUERIES);
    check_multiple("heads * head_dim", c.heads * c.head_dim);
    check_range("vocab", c.vocab, 1, MAX_VOCAB);
    check_range("max_rows", c.max_rows, 1, MAX_ROWS);
    check_range("max_positions", c.max_positions, 1, MAX_POSITIONS);
    check_range("threads", c.threads, 1, MAX_THREADS);
    check_range("kv", c.kv, KV_BF16, KV_INT8);
    check_range("no_rope_interval", c.no_rope_interval, 0, MAX_LAYERS);
    if (!(c.epsilon > 0 && std::isfinite(c.epsilon))) refuse("epsilon must be above 0");
    if (!(c.attention_scale > 0 && std::isfinite(c.attention_scale)))
        refuse("attention_scale must be above 0");
}

void check_batch(const Config& config, int blocks, const Batch& b) {
    check_range("rows", b.rows, 1, config.max_rows);
    check_range("segments", b.segments, 1, b.rows);
    if (b.query_start[0] != 0 || b.query_start[b.segments] != b.rows)
        refuse("query_start does not cover the ", b.rows, " rows");
    for (int row = 0; row < b.rows; row++)
        if (b.tokens[row] < 0 || b.tokens[row] >= config.vocab)
            refuse("row ", row, " has token ", b.tokens[row], "; the vocabulary has ",
                   config.vocab);
    for (int s = 0; s < b.segments; s++) {
        check_positions(config, b, s);
        check_blocks(blocks, b, s);
    }
    check_range("samples", b.samples, 0, b.rows);
    for (int i = 0; i < b.samples; i++)
        if (b.sample_rows[i] <= (i > 0 ? b.sample_rows[i - 1] : -1) || b.sample_rows[i] >= b.rows)
            refuse("sample_rows must ascend within the ", b.rows, " rows");
}

void check_outcome(const Config& config, const Batch& batch, const Outcome& outcome) {
    if (outcome.rows == nullptr) return;
    if (!outcome.sampled || !outcome.top_ids || !outcome.top_logprobs)
        refuse("there is no room for the sampled tokens");
    for (int i = 0; i < batch.samples; i++) check_sample(outcome.rows[i], config.vocab);
}

}  // namespace fewer
