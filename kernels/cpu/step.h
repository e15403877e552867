// One step of a model: any mix of prefill chunks and decodes, all layers, in one call.
#pragma once
#include <atomic>

#include "model.h"
#include "product.h"
#include "sample.h"

namespace fewer {

// The flat batch of engine/runner/base.py: `segments` runs of rows laid end to end.
struct Batch {
    std::int32_t rows, segments, table_width, samples;
    const std::int32_t *tokens, *positions, *slots;      // [rows]
    const std::int32_t *query_start, *context_len;       // [segments + 1], [segments]
    const std::int32_t *block_table;                     // [segments][table_width]
    const std::int32_t *sample_rows;                     // [samples], ascending
};

// Where the outcome of a step goes; each may be null.
struct Outcome {
    const SampleRow* rows;               // [samples], how to sample
    SampledToken* sampled;               // [samples]
    std::int32_t* alternative_ids;       // [samples][MAX_LOGPROBS]
    float* alternative_logprobs;         // [samples][MAX_LOGPROBS]
    float* logits;                       // [samples][vocab]
};

class Stepper {
   public:
    explicit Stepper(Model& model);

    void run(const Batch& batch, const Outcome& outcome);

   private:
    // Some query rows of one segment and one KV head, over one split of its positions or all.
    struct Task {
        int segment, kv_head, first_row, rows;
        int split, splits, slot;  // split is -1 when the task covers all of them
    };
    // Quantised input of a product: one copy for all threads, and a small one for each.
    struct Rows {
        Activations shared;
        std::vector<Activations> own;
        void allocate(Arena& arena, int rows, int width, int threads);
    };
    static constexpr int SMALL = 4;  // up to here each thread quantises for itself: no barrier
    static constexpr int MAX_TASK_QUERIES = 32;

    void prepare(const Batch& batch);
    void add_tasks(std::vector<Task>& tasks, int segment, int first_row, int count, int rows_in_step);
    void work(int id);
    void layer(int id, int index);
    void embed();
    const Activations& normed(int id, const float* x, int rows, const float* weight);
    const Activations& quantised(int id, const float* x, int rows);
    template <class Set> const Activations& fill(Rows& target, int id, int rows, Set set);
    void place_heads(int layer, int row, int head);
    void attend(int layer, const Task& task);
    void attend_split(int layer, const Task& task, int split, Softmax* states);
    void finish(const Task& task, const Softmax* states);
    void add_product(const Matrix& matrix, const Activations& x, int rows, float* residual, const float* bias);
    void feed_forward(int id, const Layer& layer, int rows, float* x);
    void output(int id);
    void deliver(int id);
    float* logits(int sample) { return logits_ + std::size_t(sample) * logits_stride_; }

    Model& model_;
    const Config& config_;
    Pool pool_;
    Arena scratch_;
    int heads_width_, projection_width_, logits_stride_;
    float *x_, *x_last_, *projection_, *attended_, *attended_last_, *logits_ = nullptr;
    bf16* query_;
    Rows normed_, quantised_;  // `hidden` wide, and heads x head_dim wide
    Activations middle_;       // of the feed-forward
    std::unique_ptr<Arena> logits_memory_;
    int logits_capacity_ = 0;
    std::vector<SampleScratch> sample_scratch_;  // one a thread

    // Of the current step. Threads read these only before the step's last barrier.
    Batch batch_{};
    Outcome outcome_{};
    bool trimmed_ = false;  // the last layer computes sampled rows only
    std::vector<int> segment_of_;
    std::vector<Task> tasks_, last_tasks_;
    std::vector<Softmax> partial_;        // [slot][query][split]
    int partial_splits_ = 0, slots_ = 0;
    std::unique_ptr<std::atomic<int>[]> finished_;
    int finished_capacity_ = 0;
};

}  // namespace fewer
