#include "sample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace fewer {

namespace {

constexpr float INFINITE = std::numeric_limits<float>::infinity();
constexpr float LARGEST = std::numeric_limits<float>::max();
constexpr double LOGPROB_FLOOR = -9999.0;  // JSON has no -inf
constexpr float RACE_ROUNDING = 1.0001f;   // far above the error of the race's first pass

// ---- noise: Philox4x64-10 (Salmon et al., SC 2011); engine/sampling/noise.py states its use ----

struct Words {
    std::uint64_t word[4];
    u32 at(int token) const { return u32(word[token % 8 / 2] >> (token % 2 * 32)); }
};

FEWER_INLINE void multiply_wide(std::uint64_t a, std::uint64_t b, std::uint64_t& high, std::uint64_t& low) {
    const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    high = std::uint64_t(product >> 64);
    low = std::uint64_t(product);
}

FEWER_INLINE Words philox(std::uint64_t block, std::uint64_t position, std::uint64_t seed) {
    std::uint64_t c0 = block, c1 = position, c2 = 0, c3 = 0, k0 = seed, k1 = 0;
    for (int round = 0; round < 10; round++) {
        std::uint64_t high0, low0, high1, low1;
        multiply_wide(0xD2E7470EE14C6C93u, c0, high0, low0);
        multiply_wide(0xCA5A826395121157u, c2, high1, low1);
        c0 = high1 ^ c1 ^ k0;
        c2 = high0 ^ c3 ^ k1;
        c1 = low1;
        c3 = low0;
        k0 += 0x9E3779B97F4A7C15u;
        k1 += 0xBB67AE8584CAA73Bu;
    }
    return {{c0, c1, c2, c3}};
}

FEWER_INLINE Words noise_block(const SampleRow& row, int token) {
    return philox(std::uint64_t(1 + token / 8), std::uint64_t(row.position), row.seed);
}

double exponential(u32 word) { return -std::log((double(word) + 0.5) * 0x1p-32); }

// ---- what is done to the logits before they become a distribution -------------------------------

bool changes(const SampleRow& row) {
    return row.allowed.count >= 0 || row.bad.count > 0 || row.ending.count > 0 || row.bias.count > 0 ||
           row.repetition_penalty != 1.0 || row.presence_penalty != 0.0 || row.frequency_penalty != 0.0;
}

void penalise_repetition(float* logits, int vocab, const SampleRow& row, std::vector<std::uint8_t>& seen) {
    seen.assign(std::size_t(vocab), 0);
    const float factor = float(std::max(row.repetition_penalty, double(std::numeric_limits<float>::min())));
    for (const Ids* list : {&row.prompt, &row.output})
        for (std::int64_t i = 0; i < list->count; i++) {
            auto& once = seen[std::size_t(list->ids[i])];
            if (once) continue;
            once = 1;
            float& v = logits[list->ids[i]];
            v = std::min(v > 0 ? v / factor : v * factor, LARGEST);
        }
}

void penalise_output(float* logits, const SampleRow& row) {
    std::vector<std::int32_t> sorted(row.output.ids, row.output.ids + std::max<std::int64_t>(row.output.count, 0));
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t i = 0, j; i < sorted.size(); i = j) {
        for (j = i + 1; j < sorted.size() && sorted[j] == sorted[i];) j++;
        const float frequency = float(j - i) * float(row.frequency_penalty);
        logits[sorted[i]] -= frequency + float(row.presence_penalty);
    }
}

// The adjusted row: `logits` itself where nothing changes, otherwise a copy in the scratch.
const float* adjust(const float* logits, int vocab, const SampleRow& row, SampleScratch& scratch) {
    if (!changes(row)) return logits;
    auto& out = scratch.adjusted;
    if (row.allowed.count >= 0) {
        out.assign(std::size_t(vocab), -INFINITE);
        for (std::int64_t i = 0; i < row.allowed.count; i++) out[std::size_t(row.allowed.ids[i])] = logits[row.allowed.ids[i]];
    } else {
        out.assign(logits, logits + vocab);
    }
    for (const Ids* masked : {&row.bad, &row.ending})
        for (std::int64_t i = 0; i < masked->count; i++) out[std::size_t(masked->ids[i])] = -INFINITE;
    for (std::int64_t i = 0; i < row.bias.count; i++) out[std::size_t(row.bias.ids[i])] += row.bias_values[i];
    if (row.repetition_penalty != 1.0) penalise_repetition(out.data(), vocab, row, scratch.seen);
    if (row.presence_penalty != 0.0 || row.frequency_penalty != 0.0) penalise_output(out.data(), row);
    return out.data();
}

int first_largest(const float* values, int count) {
    float best = -INFINITE;
    int i = 0;
    Float16 lanes = splat(-INFINITE);
    for (; i + 16 <= count; i += 16) lanes = maximum(lanes, load(values + i));
    best = max_lanes(lanes);
    for (; i < count; i++) best = std::max(best, values[i]);
    for (i = 0; i < count; i++)
        if (values[i] == best) return i;
    return 0;  // every value is NaN
}

// ---- filters: ids in `kept`, ascending ------------------------------------------------------------

// `a` before `b` in the order of tokens: by value, descending, then by id, ascending.
struct Before {
    const float* values;
    bool operator()(std::int32_t a, std::int32_t b) const {
        return values[a] > values[b] || (values[a] == values[b] && a < b);
    }
};

void keep_top_k(const float* scaled, std::vector<std::int32_t>& kept, std::size_t k) {
    if (k >= kept.size()) return;
    std::nth_element(kept.begin(), kept.begin() + std::ptrdiff_t(k), kept.end(), Before{scaled});
    kept.resize(k);
}

// e^x in double for x <= 0, within 2 ulp; plain operations, so that a loop of it vectorises.
FEWER_INLINE double exp_nonpositive(double x) {
    x = std::max(x, -700.0);
    constexpr double ROUND = 6755399441055744.0;  // adding it rounds to a whole number
    const double shifted = __builtin_fma(x, 1.4426950408889634, ROUND), n = shifted - ROUND;
    const double r = __builtin_fma(n, -1.9082149292705877e-10, __builtin_fma(n, -0.6931471803691238, x));
    double p = 1.0 / 479001600;
    p = __builtin_fma(p, r, 1.0 / 39916800);
    p = __builtin_fma(p, r, 1.0 / 3628800);
    p = __builtin_fma(p, r, 1.0 / 362880);
    p = __builtin_fma(p, r, 1.0 / 40320);
    p = __builtin_fma(p, r, 1.0 / 5040);
    p = __builtin_fma(p, r, 1.0 / 720);
    p = __builtin_fma(p, r, 1.0 / 120);
    p = __builtin_fma(p, r, 1.0 / 24);
    p = __builtin_fma(p, r, 1.0 / 6);
    p = __builtin_fma(p, r, 0.5);
    p = __builtin_fma(p, r, 1.0);
    p = __builtin_fma(p, r, 1.0);
    std::int64_t exponent;
    std::memcpy(&exponent, &shifted, 8);
    const std::uint64_t bits = std::uint64_t(exponent + 1023) << 52;
    double power;
    std::memcpy(&power, &bits, 8);
    return p * power;
}

constexpr int BINS = 1024;
constexpr float BINS_PER_NAT = 32;  // bins reach 32 nats below the best; the last takes the rest

int bin_of(float scaled) { return int(std::min(scaled * -BINS_PER_NAT, float(BINS - 1))); }

// The shortest run of first tokens whose mass reaches p of the whole; at least one (Holtzman et
// al., 2020). Masses go into bins by value, and only the bin where p is reached is sorted.
void keep_top_p(const float* scaled, SampleScratch& scratch, double p) {
    auto &kept = scratch.kept, &level = scratch.level;
    auto& mass = scratch.mass;
    mass.resize(kept.size());
    for (std::size_t i = 0; i < kept.size(); i++) mass[i] = exp_nonpositive(double(scaled[kept[i]]));
    double in_bin[BINS] = {};
    for (std::size_t i = 0; i < kept.size(); i++) in_bin[bin_of(scaled[kept[i]])] += mass[i];
    double total = 0;
    for (const double m : in_bin) total += m;
    const double target = p * total;
    int edge = 0;
    double before = 0;
    while (edge < BINS - 1 && before + in_bin[edge] < target) before += in_bin[edge++];
    level.clear();
    for (const auto id : kept)
        if (bin_of(scaled[id]) == edge) level.push_back(id);
    std::sort(level.begin(), level.end(), Before{scaled});
    std::size_t needed = 0;
    while (needed < level.size() && (needed == 0 || before < target)) before += exp_nonpositive(double(scaled[level[needed++]]));
    level.resize(needed);
    std::erase_if(kept, [&](std::int32_t id) { return bin_of(scaled[id]) >= edge; });
    kept.insert(kept.end(), level.begin(), level.end());
}

void keep_min_p(const float* scaled, std::vector<std::int32_t>& kept, double p) {
    std::erase_if(kept, [&](std::int32_t id) { return std::exp(double(scaled[id])) < p; });
}

// ---- Gumbel-max as a race of exponentials -----------------------------------------------------------

// The winner is the least E / exp(scaled), E = -log(u); E is never under 1 - u, so the cheap
// ratio of the first pass never overstates, and only ids under the bound are looked at again.
class Race {
   public:
    Race(const SampleRow& row, const float* scaled) : row_(row), scaled_(scaled) {}

    int over_all(int vocab) {
        for (int start = 0; start < vocab; start += 8) consider(start, std::min(start + 8, vocab));
        return winner_;
    }

    int over(const std::vector<std::int32_t>& kept) {
        for (const auto id : kept) consider(id, id + 1);
        return winner_;
    }

   private:
    void consider(int first, int end) {
        float best = scaled_[first];
        for (int id = first + 1; id < end; id++) best = std::max(best, scaled_[id]);
        if (double(best) + 22.88 < score_) return;  // the largest Gumbel noise is 22.87
        const Words words = noise_block(row_, first);
        for (int id = first; id < end; id++) {
            const u32 word = words.at(id);
            if (double(scaled_[id]) + 22.88 < score_) continue;
            const float least = (float(~word) + 0.5f) * 0x1p-32f;
            if (least > bound_ * std::exp(scaled_[id])) continue;
            const double score = double(scaled_[id]) - std::log(exponential(word));
            if (score > score_ || (score == score_ && id < winner_)) {
                score_ = score;
                winner_ = id;
                bound_ = float(std::exp(-score)) * RACE_ROUNDING;
            }
        }
    }

    const SampleRow& row_;
    const float* scaled_;
    double score_ = -std::numeric_limits<double>::infinity();
    float bound_ = INFINITE;
    int winner_ = -1;
};

int choose(const float* adjusted, int vocab, const SampleRow& row, SampleScratch& scratch) {
    const int best = first_largest(adjusted, vocab);
    if (!(adjusted[best] > -INFINITE)) return -1;
    if (row.temperature == 0.f || row.top_k == 1) return best;
    auto& scaled = scratch.scaled;
    scaled.resize(std::size_t(vocab));
    const float top = adjusted[best];
    for (int i = 0; i < vocab; i++) scaled[std::size_t(i)] = (adjusted[i] - top) / row.temperature;
    Race race(row, scaled.data());
    const bool filtered = (row.top_k > 0 && row.top_k < vocab) || row.top_p < 1.0 || row.min_p > 0.0;
    if (!filtered) return race.over_all(vocab);
    auto& kept = scratch.kept;
    kept.resize(std::size_t(vocab));
    for (int i = 0; i < vocab; i++) kept[std::size_t(i)] = i;
    if (row.top_k > 0) keep_top_k(scaled.data(), kept, std::size_t(row.top_k));
    if (row.top_p < 1.0) keep_top_p(scaled.data(), scratch, row.top_p);
    if (row.min_p > 0.0) keep_min_p(scaled.data(), kept, row.min_p);
    return kept.size() == 1 ? kept[0] : race.over(kept);
}

double log_total(const float* logits, int vocab, double best) {
    double total = 0;
    for (int i = 0; i < vocab; i++) total += exp_nonpositive(double(logits[i]) - best);
    return best + std::log(total);
}

// Of the raw distribution, before any parameter.
void report(const float* logits, int vocab, const SampleRow& row, SampleScratch& scratch, SampledToken& out,
            std::int32_t* ids, float* logprobs) {
    const double total = log_total(logits, vocab, double(logits[first_largest(logits, vocab)]));
    out.logprob = std::max(double(logits[out.token]) - total, LOGPROB_FLOOR);
    out.alternatives = std::min(row.logprobs, vocab);
    auto& order = scratch.kept;
    order.resize(std::size_t(vocab));
    for (int i = 0; i < vocab; i++) order[std::size_t(i)] = i;
    std::partial_sort(order.begin(), order.begin() + out.alternatives, order.end(), Before{logits});
    for (int i = 0; i < out.alternatives; i++) {
        ids[i] = order[std::size_t(i)];
        logprobs[i] = float(std::max(double(logits[ids[i]]) - total, LOGPROB_FLOOR));
    }
}

}  // namespace

namespace {

bool all_finite(const float* logits, int vocab) {
    float zero = 0;
    for (int i = 0; i < vocab; i++) zero += logits[i] * 0.f;
    return zero == 0.f;
}

float finite(float v) { return std::isnan(v) ? -INFINITE : std::min(v, LARGEST); }

}  // namespace

SampledToken sample_row(const float* logits, int vocab, const SampleRow& row, SampleScratch& scratch,
                        std::int32_t* alternative_ids, float* alternative_logprobs) {
    if (!all_finite(logits, vocab)) {
        scratch.finite.resize(std::size_t(vocab));
        std::transform(logits, logits + vocab, scratch.finite.begin(), finite);
        logits = scratch.finite.data();
    }
    const float* adjusted = adjust(logits, vocab, row, scratch);
    SampledToken out{std::nan(""), choose(adjusted, vocab, row, scratch), 0};
    if (out.token >= 0 && row.logprobs >= 0) report(logits, vocab, row, scratch, out, alternative_ids, alternative_logprobs);
    return out;
}

}  // namespace fewer
