#include "step.h"

#include <cstring>

namespace fewer {

Stepper::Stepper(Model& model) : model_(model), config_(model.config), pool_(model.config.threads) {
    const Config& c = config_;
    const auto rows = std::size_t(c.max_rows);
    heads_width_ = c.heads * c.head_dim;
    projection_width_ = (c.heads + 2 * c.kv_heads) * c.head_dim + 96;  // parts are padded to 32 rows
    logits_stride_ = (c.vocab + 31) / 32 * 32;
    x_ = scratch_.take<float>(rows * c.hidden);
    x_last_ = scratch_.take<float>(rows * c.hidden);
    projection_ = scratch_.take<float>(rows * projection_width_);
    attended_ = scratch_.take<float>(rows * heads_width_);
    attended_last_ = scratch_.take<float>(rows * heads_width_);
    query_ = scratch_.take<bf16>(rows * heads_width_);
    normed_.allocate(scratch_, c.max_rows, c.hidden, c.threads);
    quantised_.allocate(scratch_, c.max_rows, heads_width_, c.threads);
    middle_.allocate(scratch_, c.max_rows, c.feed_forward);
    segment_of_.resize(rows);
    sample_scratch_.resize(std::size_t(c.threads));
}

void Stepper::Rows::allocate(Arena& arena, int rows, int width, int threads) {
    shared.allocate(arena, rows, width);
    own.resize(std::size_t(threads));
    for (auto& mine : own) mine.allocate(arena, SMALL, width);
}

void Stepper::run(const Batch& batch, const Outcome& outcome) {
    prepare(batch);
    outcome_ = outcome;
    auto body = [this](int id) { work(id); };
    pool_.run(body);
}

// ---- before the step: who attends to what ---------------------------------------------------

void Stepper::prepare(const Batch& batch) {
    batch_ = batch;
    trimmed_ = batch.samples < batch.rows;
    if (batch.samples > logits_capacity_) {
        logits_capacity_ = batch.samples;
        logits_memory_ = std::make_unique<Arena>();
        logits_ = logits_memory_->take<float>(std::size_t(logits_capacity_) * logits_stride_);
    }
    tasks_.clear();
    last_tasks_.clear();
    slots_ = 0;
    int longest = 1;
    for (int s = 0; s < batch.segments; s++) longest = std::max(longest, batch.context_len[s]);
    partial_splits_ = (longest + KV_SPLIT - 1) / KV_SPLIT;
    // Long prompts come last in a batch and cost most: their tasks go first.
    for (int s = batch.segments - 1; s >= 0; s--) {
        const int first = batch.query_start[s], count = batch.query_start[s + 1] - first;
        for (int i = 0; i < count; i++) segment_of_[std::size_t(first + i)] = s;
        add_tasks(tasks_, s, first, count, batch.rows);
    }
    if (trimmed_)
        for (int i = 0; i < batch.samples; i++)
            add_tasks(last_tasks_, segment_of_[std::size_t(batch.sample_rows[i])], batch.sample_rows[i], 1, batch.samples);
    partial_.resize(std::size_t(slots_) * MAX_TASK_QUERIES * partial_splits_);
    if (slots_ > finished_capacity_) {
        finished_capacity_ = slots_;
        finished_ = std::make_unique<std::atomic<int>[]>(std::size_t(slots_));
    }
    for (int i = 0; i < slots_; i++) finished_[std::size_t(i)].store(0, std::memory_order_relaxed);
}

void Stepper::add_tasks(std::vector<Task>& tasks, int segment, int first_row, int count, int rows_in_step) {
    const int queries = config_.heads / config_.kv_heads;
    const int most = std::max(1, std::min(8, MAX_TASK_QUERIES / queries));
    const int step = rows_in_step * config_.kv_heads >= 64 * pool_.threads() ? most : std::min(2, most);
    for (int at = (count - 1) / step * step; at >= 0; at -= step)
        for (int h = 0; h < config_.kv_heads; h++) {
            Task task{segment, h, first_row + at, std::min(step, count - at), -1, 1, 0};
            const int end = batch_.positions[task.first_row + task.rows - 1] + 1;
            task.splits = (end + KV_SPLIT - 1) / KV_SPLIT;
            if (pool_.threads() == 1 || task.splits == 1 || rows_in_step > 16) {
                tasks.push_back(task);
                continue;
            }
            task.slot = slots_++;
            for (task.split = 0; task.split < task.splits; task.split++) tasks.push_back(task);
        }
}

// ---- the step, on every thread -----------------------------------------------------------------

void Stepper::work(int id) {
    embed();
    for (int l = 0; l < config_.layers; l++) layer(id, l);
    if (batch_.samples > 0) output(id);
    pool_.barrier();
    deliver(id);
    pool_.barrier();
}

void Stepper::embed() {
    pool_.each(batch_.rows, 4, [&](int row) {
        model_.embedding.get_row(batch_.tokens[row], x_ + std::size_t(row) * config_.hidden);
    });
    pool_.barrier();
}

void Stepper::layer(int id, int index) {
    const Layer& w = model_.layers[std::size_t(index)];
    const int hidden = config_.hidden, head_rows = config_.heads + 2 * config_.kv_heads;
    const bool last = index == config_.layers - 1 && trimmed_;

    const Activations& a = normed(id, x_, batch_.rows, w.attention_norm);
    const Part parts[3] = {{&w.query, 0},
                           {&w.key, heads_width_},
                           {&w.value, heads_width_ + config_.kv_heads * config_.head_dim}};
    // Parts are padded to 32 rows; a padded part's zeros land where the next part then writes,
    // so each part stores no further than its own width.
    product<1>(pool_, parts, 3, a, batch_.rows, [&](int column, int row, auto& tiles) {
        const int end = column < parts[1].column ? parts[1].column
                      : column < parts[2].column ? parts[2].column
                                                 : parts[2].column + config_.kv_heads * config_.head_dim;
        constexpr int count = sizeof(tiles[0].value[0]) / sizeof(Float16);
        for (int t = 0; t < count; t++)
            for (int b = 0; b < 2; b++)
                if (column + b * 16 < end)
                    store(projection_ + std::size_t(row + t) * projection_width_ + column + b * 16, tiles[0].value[b][t]);
    });
    pool_.barrier();
    pool_.each(batch_.rows * head_rows, batch_.rows > SMALL ? head_rows : 4, [&](int i) { place_heads(index, i / head_rows, i % head_rows); });
    pool_.barrier();
    if (last && batch_.samples == 0) return;  // nothing reads this layer's output

    const auto& tasks = last ? last_tasks_ : tasks_;
    pool_.each(int(tasks.size()), 1, [&](int i) { attend(index, tasks[std::size_t(i)]); });
    pool_.barrier();
    float *x = x_, *attended = attended_;
    int rows = batch_.rows;
    if (last) {
        x = x_last_, attended = attended_last_, rows = batch_.samples;
        pool_.each(rows, 4, [&](int i) {
            const auto row = std::size_t(batch_.sample_rows[i]);
            std::memcpy(x + std::size_t(i) * hidden, x_ + row * hidden, std::size_t(hidden) * 4);
            std::memcpy(attended + std::size_t(i) * heads_width_, attended_ + row * heads_width_, std::size_t(heads_width_) * 4);
        });
        pool_.barrier();
    }
    const Activations& attention = quantised(id, attended, rows);
    add_product(w.output, attention, rows, x, w.output_bias);
    pool_.barrier();
    feed_forward(id, w, rows, x);
}

void Stepper::feed_forward(int id, const Layer& w, int rows, float* x) {
    const Activations& a = normed(id, x, rows, w.feed_forward_norm);
    const Part part{&w.gate_up, 0};
    // 64 packed rows are 32 of gate and the same 32 of up: one group of the next product.
    product<2>(pool_, &part, 1, a, rows, [&](int column, int row, auto& tiles) {
        constexpr int count = sizeof(tiles[0].value[0]) / sizeof(Float16);
        for (int t = 0; t < count; t++) {
            Float16 h[2];
            for (int b = 0; b < 2; b++) {
                const Float16 gate = tiles[0].value[b][t];
                h[b] = gate / (splat(1.f) + exp_lanes(splat(0.f) - gate)) * tiles[1].value[b][t];
            }
            middle_.set(row + t, column / 64, h[0], h[1]);
        }
    });
    pool_.barrier();
    add_product(w.down, middle_, rows, x, nullptr);
    pool_.barrier();
}

void Stepper::output(int id) {
    const Activations& a = normed(id, trimmed_ ? x_last_ : x_, batch_.samples, model_.final_norm);
    const Part part{&model_.output_head(), 0};
    product<1>(pool_, &part, 1, a, batch_.samples, [&](int column, int row, auto& tiles) {
        constexpr int count = sizeof(tiles[0].value[0]) / sizeof(Float16);
        for (int t = 0; t < count; t++)
            for (int b = 0; b < 2; b++) store(logits(row + t) + column + b * 16, tiles[0].value[b][t]);
    });
}

void Stepper::deliver(int id) {
    const auto vocab = std::size_t(config_.vocab);
    pool_.each(batch_.samples, 1, [&](int i) {
        const auto at = std::size_t(i);
        if (outcome_.logits) std::memcpy(outcome_.logits + at * vocab, logits(i), vocab * 4);
        if (outcome_.rows)
            outcome_.sampled[i] = sample_row(logits(i), config_.vocab, outcome_.rows[i], sample_scratch_[std::size_t(id)],
                                             outcome_.alternative_ids + at * MAX_LOGPROBS, outcome_.alternative_logprobs + at * MAX_LOGPROBS);
    });
}

// ---- pieces ----------------------------------------------------------------------------------------

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
        out.set_row(row, x + std::size_t(row) * heads_width_);
    });
}

void Stepper::add_product(const Matrix& matrix, const Activations& x, int rows, float* residual, const float* bias) {
    const Part part{&matrix, 0};
    const int width = config_.hidden;
    product<1>(pool_, &part, 1, x, rows, [&](int column, int row, auto& tiles) {
        constexpr int count = sizeof(tiles[0].value[0]) / sizeof(Float16);
        for (int t = 0; t < count; t++)
            for (int b = 0; b < 2; b++) {
                const int at = column + b * 16;
                float* out = residual + std::size_t(row + t) * width + at;
                Float16 sum = load(out) + tiles[0].value[b][t];
                if (bias) sum = sum + load(bias + at);
                store(out, sum);
            }
    });
}

// One head of one row after the projections: bias, norm, rope; then to the query or the KV cache.
void Stepper::place_heads(int index, int row, int head) {
    const Config& c = config_;
    const Layer& w = model_.layers[std::size_t(index)];
    const int D = c.head_dim, half_dim = D / 2;
    const bool is_query = head < c.heads, is_key = !is_query && head < c.heads + c.kv_heads;
    const int own = is_query ? head : is_key ? head - c.heads : head - c.heads - c.kv_heads;
    float* v = projection_ + std::size_t(row) * projection_width_ + std::size_t(head) * D;
    const float* bias = is_query ? w.query_bias : is_key ? w.key_bias : w.value_bias;
    if (bias)
        for (int i = 0; i < D; i += 16) store(v + i, load(v + i) + load(bias + std::size_t(own) * D + i));
    const int slot = batch_.slots[row];
    bf16* block = is_query ? nullptr : model_.kv_block(index, slot / KV_BLOCK, own);
    if (!is_query && !is_key) return store_value(block, slot % KV_BLOCK, v, D);

    if (const float* norm = is_query ? w.query_norm : w.key_norm) {
        Float16 squares = splat(0.f);
        for (int i = 0; i < D; i += 16) squares = fma(load(v + i), load(v + i), squares);
        const Float16 r = splat(1.f / __builtin_sqrtf(sum_lanes(squares) / float(D) + c.epsilon));
        for (int i = 0; i < D; i += 16) store(v + i, load(v + i) * r * load(norm + i));
    }
    const auto at = std::size_t(batch_.positions[row]) * half_dim;
    const bool rotated = c.no_rope_interval == 0 || (index + 1) % c.no_rope_interval != 0;
    for (int i = 0; rotated && i < half_dim; i++) {
        const float cosine = model_.rope_cos[at + i], sine = model_.rope_sin[at + i];
        const float a = v[i], b = v[i + half_dim];
        v[i] = __builtin_fmaf(a, cosine, -(b * sine));
        v[i + half_dim] = __builtin_fmaf(b, cosine, a * sine);
    }
    if (is_key) return store_key(block, slot % KV_BLOCK, v, D);
    const Float16 scale = splat(c.attention_scale * 1.44269504f);
    bf16* out = query_ + std::size_t(row) * heads_width_ + std::size_t(head) * D;
    for (int i = 0; i < D; i += 16) store_bf16(out + i, load(v + i) * scale);
}

// ---- attention ---------------------------------------------------------------------------------------

void Stepper::attend(int layer, const Task& task) {
    const int queries = config_.heads / config_.kv_heads, count = task.rows * queries;
    Softmax states[MAX_TASK_QUERIES], split_states[MAX_TASK_QUERIES];
    for (int i = 0; i < count; i++) states[i].reset();
    if (task.split < 0) {
        for (int split = 0; split < task.splits; split++) {
            attend_split(layer, task, split, split_states);
            for (int i = 0; i < count; i++)
                if (batch_.positions[task.first_row + i / queries] >= split * KV_SPLIT) states[i].merge(split_states[i], config_.head_dim);
        }
        return finish(task, states);
    }
    attend_split(layer, task, task.split, split_states);
    Softmax* mine = &partial_[std::size_t(task.slot) * MAX_TASK_QUERIES * partial_splits_];
    for (int i = 0; i < count; i++) mine[i * partial_splits_ + task.split] = split_states[i];
    auto& finished = finished_[std::size_t(task.slot)];
    if (finished.fetch_add(1, std::memory_order_acq_rel) != task.splits - 1) return;
    finished.store(0, std::memory_order_relaxed);  // ready for the next layer
    for (int i = 0; i < count; i++)
        for (int split = 0; split <= batch_.positions[task.first_row + i / queries] / KV_SPLIT; split++)
            states[i].merge(mine[i * partial_splits_ + split], config_.head_dim);
    finish(task, states);
}

void Stepper::attend_split(int layer, const Task& task, int split, Softmax* states) {
    const int queries = config_.heads / config_.kv_heads, count = task.rows * queries;
    const int* table = batch_.block_table + std::size_t(task.segment) * batch_.table_width;
    const int last = batch_.positions[task.first_row + task.rows - 1];
    const int end = std::min(last + 1, (split + 1) * KV_SPLIT);
    for (int i = 0; i < count; i++) states[i].reset();
    for (int start = split * KV_SPLIT; start < end; start += KV_TILE) {
        const bf16* blocks[4];
        for (int b = 0; b < 4; b++)
            blocks[b] = model_.kv_block(layer, table[std::min(start + b * KV_BLOCK, last) / KV_BLOCK], task.kv_head);
        QueryRow rows[MAX_TASK_QUERIES];
        int seen = 0;
        for (int i = 0; i < count; i++) {
            const int row = task.first_row + i / queries, visible = batch_.positions[row] + 1 - start;
            if (visible <= 0) continue;
            const int head = task.kv_head * queries + i % queries;
            rows[seen++] = {&states[i], query_ + std::size_t(row) * heads_width_ + std::size_t(head) * config_.head_dim, visible};
        }
        fewer::attend(config_.head_dim, rows, seen, blocks);
    }
}

void Stepper::finish(const Task& task, const Softmax* states) {
    const int queries = config_.heads / config_.kv_heads, D = config_.head_dim;
    for (int i = 0; i < task.rows * queries; i++) {
        const int head = task.kv_head * queries + i % queries;
        float* out = attended_ + std::size_t(task.first_row + i / queries) * heads_width_ + std::size_t(head) * D;
        const Float16 inverse = splat(1.f / sum_lanes(states[i].sum));
        for (int d = 0; d < D; d += 16) store(out + d, states[i].value[d / 16] * inverse);
    }
}

}  // namespace fewer
