// One step of a model: any mix of prefill chunks and decodes, all layers, in one call.
#pragma once
#include "attention.h"
#include "product.h"
#include "sample.h"

namespace fewer {

class Stepper {
 public:
    explicit Stepper(Model& model);

    // The batch and the outcome must have passed check.h.
    void run(const Batch& batch, const Outcome& outcome);

 private:
    // Quantised input of a product: one copy for all threads, and a small one for each.
    struct Rows {
        Activations shared;
        std::vector<Activations> own;
        void allocate(Arena& arena, int rows, int width, int threads);
    };
    static constexpr int SMALL = 4;  // up to here each thread quantises for itself: no barrier

    void reserve_logits(int samples);
    void work(int id);
    void embed();
    void layer(int id, int index);
    void project(const Layer& layer, const Activations& x);
    void place_heads(int layer, int row, int head);
    void place_query(const float* values, int row, int head);
    void normalise(float* head, const float* weight) const;
    void rotate(float* head, int position) const;
    void take_sampled_rows();
    void add_product(const Matrix& matrix, const Activations& x, int rows, float* residual,
                     const float* bias);
    void feed_forward(int id, const Layer& layer, int rows, float* x);
    void output(int id);
    void deliver(int id);
    void deliver_row(int id, int sample);

    const Activations& normed(int id, const float* x, int rows, const float* weight);
    const Activations& quantised(int id, const float* x, int rows);
    template <class Set>
    const Activations& fill(Rows& target, int id, int rows, Set set);

    float* logits(int sample) { return logits_ + std::size_t(sample) * logits_stride_; }

    Model& model_;
    const Config& config_;
    const int query_width_, key_width_, projection_width_, logits_stride_;
    const std::size_t query_bytes_;  // of one head
    Pool pool_;
    Attention attention_;

    Arena scratch_;
    float *x_, *x_last_;  // residual stream; of the sampled rows alone, in the last layer
    float* projection_;   // query, key and value of every row
    u8* query_;
    float *attended_, *attended_last_;
    Rows normed_, quantised_;  // `hidden` wide, and heads x head_dim wide
    Activations middle_;       // of the feed-forward
    std::unique_ptr<Arena> logits_memory_;
    float* logits_ = nullptr;
    int logits_capacity_ = 0;
    std::vector<SampleScratch> sample_scratch_;  // one a thread

    Batch batch_{};  // of the current step, as the following
    Outcome outcome_{};
    bool trimmed_ = false;  // the last layer computes sampled rows only
    std::atomic<bool> out_of_memory_{false};
};

}  // namespace fewer
