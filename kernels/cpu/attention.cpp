#include "attention.h"

namespace fewer {

Attention::Attention(const Model& model, Pool& pool)
    : model_(model),
      pool_(pool),
      heads_(model.config.heads),
      kv_heads_(model.config.kv_heads),
      head_dim_(model.config.head_dim),
      queries_(heads_ / kv_heads_) {}

void Attention::plan(const Batch& batch, bool trimmed) {
    batch_ = batch;
    tasks_.clear();
    sampled_tasks_.clear();
    partials_used_ = 0;
    counters_ = 0;
    // Long prompts come last in a batch and cost most: their tasks go first.
    int sample = batch.samples - 1;
    for (int s = batch.segments - 1; s >= 0; s--) {
        const int first = batch.query_start[s];
        add_tasks(tasks_, s, first, batch.query_start[s + 1] - first, batch.rows);
        for (; trimmed && sample >= 0 && batch.sample_rows[sample] >= first; sample--)
            add_tasks(sampled_tasks_, s, batch.sample_rows[sample], 1, batch.samples);
    }
    if (partials_used_ > partials_.size()) partials_.resize(partials_used_);
    if (counters_ > counter_capacity_) {
        finished_ = std::make_unique<std::atomic<int>[]>(std::size_t(counters_));
        counter_capacity_ = counters_;
    }
    for (int i = 0; i < counters_; i++)
        finished_[std::size_t(i)].store(0, std::memory_order_relaxed);
}

// Rows of one segment share what they read of its context, so a task takes several, as long as
// every thread gets enough tasks.
void Attention::add_tasks(std::vector<Task>& tasks, int segment, int first_row, int count,
                          int rows_in_step) {
    const int most = std::max(1, std::min(8, MAX_TASK_QUERIES / queries_));
    const bool plenty = rows_in_step * kv_heads_ >= 64 * pool_.threads();
    const int step = plenty ? most : std::min(2, most);
    const bool may_split = pool_.threads() > 1 && rows_in_step <= MOST_ROWS_TO_SPLIT;
    for (int at = (count - 1) / step * step; at >= 0; at -= step)
        for (int head = 0; head < kv_heads_; head++)
            add_task(tasks,
                     {segment, head, first_row + at, std::min(step, count - at), -1, 1, 0, 0},
                     may_split);
}

void Attention::add_task(std::vector<Task>& tasks, Task task, bool may_split) {
    task.splits = batch_.positions[task.first_row + task.rows - 1] / KV_SPLIT + 1;
    const std::size_t needed = std::size_t(task.splits) * task.rows * queries_;
    if (!may_split || task.splits == 1 || partials_used_ + needed > MAX_PARTIALS) {
        tasks.push_back(task);
        return;
    }
    task.counter = counters_++;
    task.partials = partials_used_;
    partials_used_ += needed;
    for (task.split = 0; task.split < task.splits; task.split++) tasks.push_back(task);
}

void Attention::run(int layer, bool sampled_only, const u8* query, float* out) {
    const auto& tasks = sampled_only ? sampled_tasks_ : tasks_;
    pool_.each(int(tasks.size()), 1,
               [&](int i) { attend(layer, tasks[std::size_t(i)], query, out); });
}

// A split's softmax is the same whether one task goes through all of them or each has its own;
// whoever finishes last merges them in order.
void Attention::attend(int layer, const Task& task, const u8* query, float* out) {
    const int count = task.rows * queries_;
    Softmax states[MAX_TASK_QUERIES], own[MAX_TASK_QUERIES];
    for (int i = 0; i < count; i++) states[i].reset();
    if (task.split < 0) {
        for (int split = 0; split < task.splits; split++) {
            attend_split(layer, task, split, query, own);
            merge(task, split, own, states);
        }
        return finish(task, states, out);
    }
    Softmax* partials = &partials_[task.partials];
    attend_split(layer, task, task.split, query, partials + task.split * count);
    auto& finished = finished_[std::size_t(task.counter)];
    if (finished.fetch_add(1, std::memory_order_acq_rel) != task.splits - 1) return;
    finished.store(0, std::memory_order_relaxed);  // ready for the next layer
    for (int split = 0; split < task.splits; split++)
        merge(task, split, partials + split * count, states);
    finish(task, states, out);
}

void Attention::attend_split(int layer, const Task& task, int split, const u8* query,
                             Softmax* states) const {
    const int count = task.rows * queries_;
    const std::size_t query_bytes = model_.kv_format.query_bytes(head_dim_);
    const int* table = batch_.block_table + std::size_t(task.segment) * batch_.table_width;
    const int last = batch_.positions[task.first_row + task.rows - 1];
    const int end = std::min(last + 1, (split + 1) * KV_SPLIT);
    QueryRow rows[MAX_TASK_QUERIES];
    for (int i = 0; i < count; i++) {
        states[i].reset();
        rows[i] = {&states[i], query + head(task, i) * query_bytes,
                   position(task, i) + 1 - split * KV_SPLIT};
    }
    // Blocks past the end repeat the last and are not read.
    const auto block_at = [&](int position) {
        return model_.kv_block(layer, table[std::min(position, last) / KV_BLOCK], task.kv_head);
    };
    int ended = 0;  // rows are in order of position, so the first ones end first
    for (int start = split * KV_SPLIT; start < end; start += KV_TILE) {
        const u8 *blocks[TILE_BLOCKS], *later[TILE_BLOCKS];
        for (int b = 0; b < TILE_BLOCKS; b++) {
            blocks[b] = block_at(start + b * KV_BLOCK);
            later[b] = block_at(start + KV_TILE + b * KV_BLOCK);
        }
        while (rows[ended].visible <= 0) ended++;
        model_.kv_format.attend_rows(rows + ended, count - ended, blocks, later, head_dim_);
        for (int i = ended; i < count; i++) rows[i].visible -= KV_TILE;
    }
}

// A row that ends before the split has nothing there to merge.
void Attention::merge(const Task& task, int split, const Softmax* later, Softmax* states) const {
    for (int i = 0; i < task.rows * queries_; i++)
        if (position(task, i) >= split * KV_SPLIT) states[i].merge(later[i], head_dim_);
}

void Attention::finish(const Task& task, const Softmax* states, float* out) const {
    for (int i = 0; i < task.rows * queries_; i++) {
        const Float16 inverse = splat(1.f / sum_lanes(states[i].sum));
        float* own = out + head(task, i) * head_dim_;
        for (int d = 0; d < head_dim_; d += 16)
            store(own + d, states[i].value[d / 16] * inverse);
    }
}

}  // namespace fewer
