#include "step.h"

namespace fewer {

namespace {

// Called with the tiles of a product, 16 columns of one row at a time: use(row, column, values).
template <class Tiles, class Use>
FEWER_INLINE void each_block(Tiles& tiles, int column, int row, Use use) {
    constexpr int rows = sizeof(tiles[0].value[0]) / sizeof(Float16);
    for (int t = 0; t < rows; t++)
        for (int b = 0; b < 2; b++) use(row + t, column + b * HALF_ROWS, tiles[0].value[b][t]);
}

FEWER_INLINE Float16 silu(Float16 x) { return x / (splat(1.f) + exp_lanes(splat(0.f) - x)); }

int padded(int rows) { return (rows + BLOCK_ROWS - 1) / BLOCK_ROWS * BLOCK_ROWS; }

}  // namespace

Stepper::Stepper(Model& model)
    : model_(model),
      config_(model.config),
      query_width_(config_.heads * config_.head_dim),
      key_width_(config_.kv_heads * config_.head_dim),
      projection_width_(query_width_ + 2 * key_width_),
      logits_stride_(padded(config_.vocab)),
      query_bytes_(model.kv_format.query_bytes(config_.head_dim)),
      pool_(config_.threads),
      attention_(model, pool_) {
    const Config& c = config_;
    const auto rows = std::size_t(c.max_rows);
    x_ = scratch_.take<float>(rows * c.hidden);
    x_last_ = scratch_.take<float>(rows * c.hidden);
    projection_ = scratch_.take<float>(rows * projection_width_);
    attended_ = scratch_.take<float>(rows * query_width_);
    attended_last_ = scratch_.take<float>(rows * query_width_);
    query_ = scratch_.take<u8>(rows * c.heads * query_bytes_);
    normed_.allocate(scratch_, c.max_rows, c.hidden, c.threads);
    quantised_.allocate(scratch_, c.max_rows, query_width_, c.threads);
    middle_.allocate(scratch_, c.max_rows, c.feed_forward);
    sample_scratch_.resize(std::size_t(c.threads));
}

void Stepper::Rows::allocate(Arena& arena, int rows, int width, int threads) {
    shared.allocate(arena, rows, width);
    own.resize(std::size_t(threads));
    for (auto& mine : own) mine.allocate(arena, SMALL, width);
}

void Stepper::run(const Batch& batch, const Outcome& outcome) {
    batch_ = batch;
    outcome_ = outcome;
    trimmed_ = batch.samples < batch.rows;
    reserve_logits(batch.samples);
    attention_.plan(batch, trimmed_);
    auto body = [this](int id) { work(id); };
    pool_.run(body);
    if (out_of_memory_.exchange(false)) throw std::bad_alloc();
}

void Stepper::reserve_logits(int samples) {
    if (samples <= logits_capacity_) return;
    logits_capacity_ = 0;
    logits_memory_ = std::make_unique<Arena>();
    logits_ = logits_memory_->take<float>(std::size_t(samples) * logits_stride_);
    logits_capacity_ = samples;
}

// ---- on every thread ------------------------------------------------------------------------

void Stepper::work(int id) {
    embed();
    for (int l = 0; l < config_.layers; l++) layer(id, l);
    if (batch_.samples == 0) return;
    output(id);
    deliver(id);
}

void Stepper::embed() {
    pool_.each(batch_.rows, 4, [&](int row) {
        model_.embedding.get_row(batch_.tokens[row], x_ + std::size_t(row) * config_.hidden);
    });
    pool_.barrier();
}

void Stepper::layer(int id, int index) {
    const Layer& w = model_.layers[std::size_t(index)];
    const bool last = trimmed_ && index == config_.layers - 1;
    project(w, normed(id, x_, batch_.rows, w.attention_norm));
    const int heads = config_.heads + 2 * config_.kv_heads;
    pool_.each(batch_.rows * heads, batch_.rows > SMALL ? heads : 4,
               [&](int i) { place_heads(index, i / heads, i % heads); });
    pool_.barrier();
    if (last && batch_.samples == 0) return;  // nothing reads this layer's output

    attention_.run(index, last, query_, attended_);
    pool_.barrier();
    if (last) take_sampled_rows();
    const int rows = last ? batch_.samples : batch_.rows;
    float* x = last ? x_last_ : x_;
    add_product(w.output, quantised(id, last ? attended_last_ : attended_, rows), rows, x,
                w.output_bias);
    feed_forward(id, w, rows, x);
}

// Query, key and value side by side. A part is padded to 32 rows of weights; what the padding
// gives is not stored, for the next part lies there.
void Stepper::project(const Layer& w, const Activations& x) {
    const int key = query_width_, value = key + key_width_;
    const Part parts[3] = {{&w.query, 0}, {&w.key, key}, {&w.value, value}};
    product<1>(pool_, parts, 3, x, batch_.rows, [&](int column, int row, auto& tiles) {
        const int end = column < key ? key : column < value ? value : projection_width_;
        each_block(tiles, column, row, [&](int r, int c, Float16 v) {
            if (c < end) store(projection_ + std::size_t(r) * projection_width_ + c, v);
        });
    });
    pool_.barrier();
}

// One head of one row after the projection: bias, norm, rope; then to the query or the KV memory.
void Stepper::place_heads(int index, int row, int head) {
    const Config& c = config_;
    const Layer& w = model_.layers[std::size_t(index)];
    const bool is_query = head < c.heads, is_value = head >= c.heads + c.kv_heads;
    const int own = is_query ? head : is_value ? head - c.heads - c.kv_heads : head - c.heads;
    float* v = projection_ + std::size_t(row) * projection_width_ + std::size_t(head) * c.head_dim;
    if (const float* bias = is_query ? w.query_bias : is_value ? w.value_bias : w.key_bias)
        for (int i = 0; i < c.head_dim; i += 16)
            store(v + i, load(v + i) + load(bias + std::size_t(own) * c.head_dim + i));
    const int block = batch_.slots[row] / KV_BLOCK, offset = batch_.slots[row] % KV_BLOCK;
    u8* kv = is_query ? nullptr : model_.kv_block(index, block, own);
    if (is_value) return model_.kv_format.store_value(kv, offset, v, c.head_dim);
    if (const float* norm = is_query ? w.query_norm : w.key_norm) normalise(v, norm);
    if (model_.has_rope(index)) rotate(v, batch_.positions[row]);
    if (is_query) return place_query(v, row, head);
    model_.kv_format.store_key(kv, offset, v, c.head_dim);
}

// The attention's scale goes into the query, and log2 e too, for weights are powers of two there.
void Stepper::place_query(const float* values, int row, int head) {
    constexpr float LOG2_E = 1.44269504f;
    u8* out = query_ + (std::size_t(row) * config_.heads + head) * query_bytes_;
    model_.kv_format.store_query(out, values, config_.attention_scale * LOG2_E, config_.head_dim);
}

// RMSNorm of one head (Qwen3).
void Stepper::normalise(float* head, const float* weight) const {
    const int D = config_.head_dim;
    Float16 squares = splat(0.f);
    for (int i = 0; i < D; i += 16) squares = fma(load(head + i), load(head + i), squares);
    const Float16 r = splat(1.f / __builtin_sqrtf(sum_lanes(squares) / float(D) + config_.epsilon));
    for (int i = 0; i < D; i += 16) store(head + i, load(head + i) * r * load(weight + i));
}

// RoFormer (Su et al., 2021): value i turns with value i + D/2.
void Stepper::rotate(float* head, int position) const {
    const int pairs = config_.head_dim / 2;
    const float* cosine = model_.rope_cos + std::size_t(position) * pairs;
    const float* sine = model_.rope_sin + std::size_t(position) * pairs;
    float *first = head, *second = head + pairs;
#pragma GCC ivdep
    for (int i = 0; i < pairs; i++) {
        const float a = first[i], b = second[i];
        first[i] = __builtin_fmaf(a, cosine[i], -(b * sine[i]));
        second[i] = __builtin_fmaf(b, cosine[i], a * sine[i]);
    }
}

void Stepper::take_sampled_rows() {
    const auto hidden = std::size_t(config_.hidden), width = std::size_t(query_width_);
    pool_.each(batch_.samples, 4, [&](int i) {
        const auto row = std::size_t(batch_.sample_rows[i]);
        std::memcpy(x_last_ + i * hidden, x_ + row * hidden, hidden * sizeof(float));
        std::memcpy(attended_last_ + i * width, attended_ + row * width, width * sizeof(float));
    });
    pool_.barrier();
}

void Stepper::add_product(const Matrix& matrix, const Activations& x, int rows, float* residual,
                          const float* bias) {
    const Part part{&matrix, 0};
    product<1>(pool_, &part, 1, x, rows, [&](int column, int row, auto& tiles) {
        each_block(tiles, column, row, [&](int r, int c, Float16 v) {
            float* out = residual + std::size_t(r) * config_.hidden + c;
            Float16 sum = load(out) + v;
            if (bias) sum = sum + load(bias + c);
            store(out, sum);
        });
    });
    pool_.barrier();
}

void Stepper::feed_forward(int id, const Layer& w, int rows, float* x) {
    const Activations& a = normed(id, x, rows, w.feed_forward_norm);
    const Part part{&w.gate_up, 0};
    // 64 packed rows are 32 of gate and the same 32 of up: one group of the next product.
    product<2>(pool_, &part, 1, a, rows, [&](int column, int row, auto& tiles) {
        constexpr int count = sizeof(tiles[0].value[0]) / sizeof(Float16);
        const auto& [gate, up] = tiles;
        for (int t = 0; t < count; t++)
            middle_.set(row + t, column / (2 * GROUP), silu(gate.value[0][t]) * up.value[0][t],
                        silu(gate.value[1][t]) * up.value[1][t]);
    });
    pool_.barrier();
    add_product(w.down, middle_, rows, x, nullptr);
}

void Stepper::output(int id) {
    const Activations& a = normed(id, trimmed_ ? x_last_ : x_, batch_.samples, model_.final_norm);
    const Part part{&model_.output_head(), 0};
    product<1>(pool_, &part, 1, a, batch_.samples, [&](int column, int row, auto& tiles) {
        each_block(tiles, column, row, [&](int r, int c, Float16 v) { store(logits(r) + c, v); });
    });
    pool_.barrier();
}

void Stepper::deliver(int id) {
    pool_.each(batch_.samples, 1, [&](int i) {
        try {
            deliver_row(id, i);
        } catch (const std::bad_alloc&) {
            out_of_memory_.store(true);  // an exception must not leave a thread of the pool
        }
    });
}

void Stepper::deliver_row(int id, int i) {
    const auto at = std::size_t(i), vocab = std::size_t(config_.vocab);
    if (outcome_.logits)
        std::memcpy(outcome_.logits + at * vocab, logits(i), vocab * sizeof(float));
    if (outcome_.rows)
        outcome_.sampled[at] = sample_row(
            {logits(i), config_.vocab}, outcome_.rows[at], sample_scratch_[std::size_t(id)],
            outcome_.top_ids + at * MAX_LOGPROBS, outcome_.top_logprobs + at * MAX_LOGPROBS);
}

// ---- quantised inputs -----------------------------------------------------------------------

template <class Set>
const Activations& Stepper::fill(Rows& target, int id, int rows, Set set) {
    if (rows <= SMALL) {
        Activations& own = target.own[std::size_t(id)];
        for (int row = 0; row < rows; row++) set(own, row);
        return own;
    }
    pool_.each(rows, 8, [&](int row) { set(target.shared, row); });
    pool_.barrier();
    return target.shared;
}

const Activations& Stepper::normed(int id, const float* x, int rows, const float* weight) {
    return fill(normed_, id, rows, [&](Activations& out, int row) {
        out.set_row_normed(row, x + std::size_t(row) * config_.hidden, weight, config_.epsilon);
    });
}

const Activations& Stepper::quantised(int id, const float* x, int rows) {
    return fill(quantised_, id, rows, [&](Activations& out, int row) {
        out.set_row(row, x + std::size_t(row) * query_width_);
    });
}

}  // namespace fewer
