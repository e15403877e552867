// Which thread attends to what in a step, and how a long context is shared between threads.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "attention_tile.h"
#include "model.h"
#include "pool.h"

namespace fewer {

class Attention {
 public:
    Attention(const Model& model, Pool& pool);

    // Before the step, on one thread. `trimmed`: the last layer is asked for sampled rows only.
    void plan(const Batch& batch, bool trimmed);

    // On every thread; a barrier must follow. query: [rows][heads], as the KV format stores them.
    // out: [rows][heads][head_dim].
    void run(int layer, bool sampled_only, const u8* query, float* out);

 private:
    static constexpr int MAX_TASK_QUERIES = 32;
    static constexpr int MOST_ROWS_TO_SPLIT = 16;         // more rows are enough tasks as it is
    static constexpr std::size_t MAX_PARTIALS = 1 << 17;  // 80 MB

    // Some query rows of one segment and one KV head, over one split of its positions or all.
    struct Task {
        int segment, kv_head, first_row, rows;
        int split, splits;     // split is -1 when the task covers all of them
        int counter;           // of finished tasks that share these rows
        std::size_t partials;  // where theirs start: [split][query]
    };

    void add_tasks(std::vector<Task>& tasks, int segment, int first_row, int count,
                   int rows_in_step);
    void add_task(std::vector<Task>& tasks, Task task, bool may_split);
    void attend(int layer, const Task& task, const u8* query, float* out);
    void attend_split(int layer, const Task& task, int split, const u8* query,
                      Softmax* states) const;
    void merge(const Task& task, int split, const Softmax* later, Softmax* states) const;
    void finish(const Task& task, const Softmax* states, float* out) const;

    int position(const Task& task, int i) const {
        return batch_.positions[task.first_row + i / queries_];
    }
    std::size_t head(const Task& task, int i) const {  // among those of the whole step
        const int row = task.first_row + i / queries_;
        return std::size_t(row) * heads_ + task.kv_head * queries_ + i % queries_;
    }

    const Model& model_;
    Pool& pool_;
    const int heads_, kv_heads_, head_dim_, queries_;  // queries: heads that share a KV head

    Batch batch_{};  // of the current step
    std::vector<Task> tasks_, sampled_tasks_;
    std::vector<Softmax> partials_;
    std::size_t partials_used_ = 0;
    std::unique_ptr<std::atomic<int>[]> finished_;
    int counters_ = 0, counter_capacity_ = 0;
};

}  // namespace fewer
