#include "abi.h"

#include <memory>

#include "check.h"
#include "load.h"
#include "step.h"

using namespace fewer;

struct fewer_cpu_model {
    Model model;
    std::unique_ptr<Stepper> stepper;  // made once the weights are in
    explicit fewer_cpu_model(const Config& config) : model(config) {}
};

namespace {

thread_local std::string last_error;

template <class Body>
int guarded(Body body) {
    try {
        body();
        return 0;
    } catch (const std::bad_alloc&) {
        last_error = "there is not enough memory";
    } catch (const std::exception& error) {
        last_error = error.what();
    }
    return -1;
}

Model& open(fewer_cpu_model* model) {
    if (model == nullptr) refuse("the model is closed");
    return model->model;
}

Model& loading(fewer_cpu_model* model) {
    Model& opened = open(model);
    if (model->stepper) refuse("the model has run: its weights and memory cannot change");
    return opened;
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
    });
    return made;
}

void fewer_cpu_destroy(fewer_cpu_model* model) { delete model; }

int fewer_cpu_put_matrix(fewer_cpu_model* model, int layer, int which, const void* raw,
                         std::int64_t bytes, int group_bytes) {
    return guarded([&] {
        put_matrix(loading(model), layer, which, static_cast<const u8*>(raw), bytes, group_bytes);
    });
}

int fewer_cpu_put_vector(fewer_cpu_model* model, int layer, int which, const float* values,
                         std::int64_t count) {
    return guarded([&] { put_vector(loading(model), layer, which, values, count); });
}

int fewer_cpu_put_rope(fewer_cpu_model* model, const float* cosine, const float* sine,
                       std::int64_t count) {
    return guarded([&] { put_rope(loading(model), cosine, sine, count); });
}

int fewer_cpu_allocate_kv(fewer_cpu_model* model, int blocks) {
    return guarded([&] { allocate_kv(loading(model), blocks); });
}

int fewer_cpu_step(fewer_cpu_model* model, const Batch* batch, const Outcome* outcome) {
    return guarded([&] {
        Model& m = open(model);
        if (!model->stepper) {
            check_complete(m);
            model->stepper = std::make_unique<Stepper>(m);
        }
        check_batch(m.config, m.blocks, *batch);
        check_outcome(m.config, *batch, *outcome);
        model->stepper->run(*batch, *outcome);
    });
}

}  // extern "C"
