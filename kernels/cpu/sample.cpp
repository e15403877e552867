#include "sample.h"

#include "noise.h"

namespace fewer {

namespace {

constexpr float LARGEST = std::numeric_limits<float>::max();
constexpr double LOGPROB_FLOOR = -9999.0;  // JSON has no -inf
constexpr float RACE_ROUNDING = 1.0001f;   // far above the float errors of the race's first pass

std::size_t padded(int count) { return std::size_t(count + 15) / 16 * 16; }

// ---- what is done to the logits before they become a distribution ----------------------------

bool all_finite(Lanes logits) {
    Float16 zero = splat(0.f);
    int i = 0;
    for (; i + 16 <= logits.count; i += 16) zero = zero + load(logits.values + i) * splat(0.f);
    float rest = 0;
    for (; i < logits.count; i++) rest += logits.values[i] * 0.f;
    return sum_lanes(zero) + rest == 0.f;
}

Lanes made_finite(Lanes logits, std::vector<float>& out) {
    out.resize(padded(logits.count));
    for (int i = 0; i < logits.count; i++) {
        const float v = logits.values[i];
        out[std::size_t(i)] = std::isnan(v) ? -INFINITE : std::min(v, LARGEST);
    }
    return {out.data(), logits.count};
}

bool changes(const SampleRow& row) {
    return row.allowed.count >= 0 || row.bad.count > 0 || row.ending.count > 0 ||
           row.mask != nullptr || row.bias.count > 0 || row.repetition_penalty != 1.0 || row.presence_penalty != 0.0 ||
           row.frequency_penalty != 0.0;
}

// CTRL (Keskar et al., 2019), once a token. It saturates, so that no infinity minus an infinity
// follows.
void penalise_repetition(float* logits, const SampleRow& row, std::vector<std::uint8_t>& seen) {
    const float factor =
        float(std::max(row.repetition_penalty, double(std::numeric_limits<float>::min())));
    for (const Ids* list : {&row.prompt, &row.output})
        for (std::int64_t i = 0; i < list->count; i++) {
            auto& once = seen[std::size_t(list->ids[i])];
            if (once) continue;
            once = 1;
            float& v = logits[list->ids[i]];
            v = std::min(v > 0 ? v / factor : v * factor, LARGEST);
        }
}

// OpenAI's: frequency for every occurrence, presence once for a token that occurred.
void penalise_output(float* logits, const SampleRow& row, std::vector<std::int32_t>& sorted) {
    if (row.output.count <= 0) return;
    sorted.assign(row.output.ids, row.output.ids + row.output.count);
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t i = 0, j; i < sorted.size(); i = j) {
        for (j = i + 1; j < sorted.size() && sorted[j] == sorted[i];) j++;
        const float frequency = float(j - i) * float(row.frequency_penalty);
        logits[sorted[i]] -= frequency + float(row.presence_penalty);
    }
}

void keep_masked(float* logits, int count, const std::uint32_t* mask) {
    for (int i = 0; i < count; i += 32) {
        const std::uint32_t word = mask[i / 32];
        if (word == ~std::uint32_t{0}) continue;
        for (int k = i; k < std::min(i + 32, count); k++)
            if (!(word >> (k - i) & 1)) logits[k] = -INFINITE;
    }
}

// The adjusted row: `logits` itself where nothing changes, otherwise a copy in the scratch.
Lanes adjust(Lanes logits, const SampleRow& row, SampleScratch& scratch) {
    if (!changes(row)) return logits;
    auto& out = scratch.adjusted;
    if (row.allowed.count >= 0) {
        out.assign(padded(logits.count), -INFINITE);
        for (std::int64_t i = 0; i < row.allowed.count; i++)
            out[std::size_t(row.allowed.ids[i])] = logits.values[row.allowed.ids[i]];
    } else {
        out.resize(padded(logits.count));
        std::copy_n(logits.values, logits.count, out.begin());
    }
    if (row.mask != nullptr) keep_masked(out.data(), logits.count, row.mask);
    for (const Ids* masked : {&row.bad, &row.ending})
        for (std::int64_t i = 0; i < masked->count; i++)
            out[std::size_t(masked->ids[i])] = -INFINITE;
    for (std::int64_t i = 0; i < row.bias.count; i++)
        out[std::size_t(row.bias.ids[i])] += row.bias_values[i];
    if (row.repetition_penalty != 1.0) {
        scratch.seen.assign(std::size_t(logits.count), 0);
        penalise_repetition(out.data(), row, scratch.seen);
    }
    if (row.presence_penalty != 0.0 || row.frequency_penalty != 0.0)
        penalise_output(out.data(), row, scratch.sorted);
    return {out.data(), logits.count};
}

// (adjusted - top) / temperature: 0 at the best.
Lanes scale(Lanes adjusted, float top, float temperature, std::vector<float>& out) {
    out.resize(padded(adjusted.count));
    for (int i = 0; i < adjusted.count; i += 16)
        store(out.data() + i, (adjusted.at(i) - splat(top)) / splat(temperature));
    return {out.data(), adjusted.count};
}

// ---- Gumbel-max as a race of exponentials ----------------------------------------------------

// The winner is the least E / e^scaled, E = -log(u) being exponential noise. E is never under
// 1 - u, so (1 - u) / e^scaled never overstates that ratio, and only tokens whose cheap ratio is
// not above the best true one so far are looked at again, in double.
class Race {
 public:
    Race(const SampleRow& row, Lanes scaled, Survivors survivors)
        : row_(row), scaled_(scaled), survivors_(survivors), below_(survivors.below()) {}

    // `favourite`: a survivor likely to come far, so that few need the second look.
    int winner(int favourite) {
        look(favourite, noise(favourite).word[favourite % 8]);
        for (int start = 0; start < scaled_.count; start += STRETCH) run(start);
        return winner_;
    }

 private:
    static constexpr int STRETCH = 128;

    NoiseBlock noise(int token) const { return noise_of(row_.seed, row_.position, token); }

    // All noise of a stretch before any is read: what was written as words and is read at once
    // as a vector makes the processor wait.
    void run(int start) {
        const int end = std::min(start + STRETCH, scaled_.count);
        const Float16 hopeless = splat(std::max(below_, float(score_ - LARGEST_GUMBEL)));
        NoiseBlock blocks[STRETCH / 8];
        u32 able[STRETCH / 16];
        for (int i = start, k = 0; i < end; i += 16, k++) {
            able[k] = lanes_above(scaled_.at(i), hopeless);
            if (able[k] == 0) continue;
            blocks[2 * k] = noise(i);
            blocks[2 * k + 1] = noise(i + 8);
        }
        for (int i = start, k = 0; i < end; i += 16, k++)
            if (able[k] != 0) run(i, able[k], blocks[2 * k].word);
    }

    void run(int first, u32 able, const std::uint32_t* words) {
        alignas(64) int complement[16];  // of 2^31: rounding down understates, which is safe
        for (int k = 0; k < 16; k++) complement[k] = int(~words[k] >> 1);
        const Float16 least = to_float(load_int(complement)) * splat(0x1p-31f);
        able &= ~lanes_above(least, splat(bound_) * exp_lanes(scaled_.at(first)));
        each_bit(able, [&](int lane) {
            if (survivors_.holds(scaled_.values[first + lane], first + lane))
                look(first + lane, words[lane]);
        });
    }

    void look(int token, u32 word) {
        const double score = double(scaled_.values[token]) - std::log(exponential(word));
        if (score < score_ || (score == score_ && token >= winner_)) return;
        score_ = score;
        winner_ = token;
        bound_ = float(std::exp(-score)) * RACE_ROUNDING;
    }

    const SampleRow& row_;
    const Lanes scaled_;
    const Survivors survivors_;
    const float below_;
    double score_ = -std::numeric_limits<double>::infinity();
    float bound_ = INFINITE;
    int winner_ = -1;
};

int choose(Lanes adjusted, const SampleRow& row, SampleScratch& scratch) {
    const int best = first_largest(adjusted);
    const float top = adjusted.values[best];
    if (top == -INFINITE) return -1;
    if (row.temperature == 0.f || row.top_k == 1) return best;
    const Lanes scaled = scale(adjusted, top, row.temperature, scratch.scaled);
    Survivors survivors;
    if (row.top_k > 0 && row.top_k < scaled.count)
        survivors = top_k(scaled, row.top_k, scratch.filter);
    if (row.top_p < 1.0) survivors = top_p(scaled, survivors, row.top_p, scratch.filter);
    if (row.min_p > 0.0) survivors = min_p(survivors, row.min_p);
    return Race(row, scaled, survivors).winner(best);
}

// ---- logprobs, of the raw distribution: before any parameter ---------------------------------

void report(Lanes logits, const SampleRow& row, FilterScratch& scratch, SampledToken& out,
            std::int32_t* top_ids, float* top_logprobs) {
    const float best = logits.values[first_largest(logits)];
    const double total = double(best) + std::log(mass_of_row(logits, best));
    const auto logprob = [&](std::int32_t id) {
        return std::max(double(logits.values[id]) - total, LOGPROB_FLOOR);
    };
    out.logprob = logprob(out.token);
    out.alternatives = std::min(row.logprobs, logits.count);
    if (out.alternatives == 0) return;
    take_first(logits, out.alternatives, scratch.ids);
    std::sort(scratch.ids.begin(), scratch.ids.end(), Before{logits.values});
    for (int i = 0; i < out.alternatives; i++) {
        top_ids[i] = scratch.ids[std::size_t(i)];
        top_logprobs[i] = float(logprob(top_ids[i]));
    }
}

}  // namespace

SampledToken sample_row(Lanes logits, const SampleRow& row, SampleScratch& scratch,
                        std::int32_t* top_ids, float* top_logprobs) {
    if (!all_finite(logits)) logits = made_finite(logits, scratch.finite);
    SampledToken out{std::nan(""), choose(adjust(logits, row, scratch), row, scratch), 0};
    if (out.token >= 0 && row.logprobs >= 0)
        report(logits, row, scratch.filter, out, top_ids, top_logprobs);
    return out;
}

}  // namespace fewer
