// Which tokens survive top-k, top-p and min-p; engine/sampling/filters.py is the meaning.
//
// Tokens are ordered by value, descending, then by id, ascending. Each filter keeps a first part
// of that order, so its last token says it all and no list of survivors is needed.
#pragma once
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "lanes.h"

namespace fewer {

struct Before {
    const float* values;
    bool operator()(std::int32_t a, std::int32_t b) const {
        return values[a] > values[b] || (values[a] == values[b] && a < b);
    }
};

// The tokens up to and with (value, id) in the order; by default all.
struct Survivors {
    float value = -INFINITE;
    std::int32_t id = std::numeric_limits<std::int32_t>::max();

    bool all() const { return value == -INFINITE; }
    float below() const { return std::nextafter(value, -INFINITE); }
    bool holds(float v, std::int32_t token) const {
        return v > value || (v == value && token <= id);
    }
};

struct FilterScratch {
    std::vector<std::int32_t> ids, level;
    std::vector<double> mass;
};

// The first k tokens in the order, themselves unordered, the last one at the end.
inline void take_first(Lanes row, int k, std::vector<std::int32_t>& ids) {
    const std::size_t enough = std::size_t(k) + std::max(k, 64);
    const auto shrink = [&] {
        std::nth_element(ids.begin(), ids.begin() + (k - 1), ids.end(), Before{row.values});
        ids.resize(std::size_t(k));
        return row.values[ids.back()];
    };
    ids.clear();
    bool full = false;
    Float16 least = splat(-INFINITE);  // of k tokens seen; a later one must be above it
    for (int i = 0; i < row.count; i += 16) {
        const u32 every = i + 16 <= row.count ? 0xffffu : (1u << (row.count - i)) - 1;
        each_bit(full ? lanes_above(row.at(i), least) : every,
                 [&](int lane) { ids.push_back(i + lane); });
        if (ids.size() < enough) continue;
        least = splat(shrink());
        full = true;
    }
    if (ids.size() >= std::size_t(k)) shrink();
}

// e^x for x from -701 to 0, within 2 ulp; plain operations, so that a loop of it is vectorised.
FEWER_INLINE double exp_nonpositive(double x) {
    constexpr double ROUND = 6755399441055744.0;  // adding it rounds to a whole number
    const double shifted = __builtin_fma(x, 1.4426950408889634, ROUND), n = shifted - ROUND;
    const double r =
        __builtin_fma(n, -1.9082149292705877e-10, __builtin_fma(n, -0.6931471803691238, x));
    double p = __builtin_fma(1.0 / 479001600, r, 1.0 / 39916800);  // Taylor: 1 / 12!, 1 / 11!, ...
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
    const auto exponent = std::bit_cast<std::uint64_t>(shifted) + 1023;
    return p * std::bit_cast<double>(exponent << 52);
}

constexpr float NEGLIGIBLE = 700;  // nats below the best

inline double mass_of(float scaled) { return exp_nonpositive(std::max(scaled, -NEGLIGIBLE)); }

// The sum of e^(value - top) over a whole row, in double.
inline double mass_of_row(Lanes row, float top) {
    double sums[16] = {};
    for (int i = 0; i < row.count; i += 16) {
        alignas(64) float lane[16];
        store(lane, maximum(row.at(i), splat(top - NEGLIGIBLE)));
        for (int k = 0; k < 16; k++) sums[k] += exp_nonpositive(double(lane[k]) - double(top));
    }
    double total = 0;
    for (const double s : sums) total += s;
    return total;
}

inline Survivors top_k(Lanes scaled, int k, FilterScratch& scratch) {
    take_first(scaled, k, scratch.ids);
    if (scratch.ids.size() < std::size_t(k)) return {};
    return {scaled.values[scratch.ids.back()], scratch.ids.back()};
}

// The survivors that can be drawn at all, with the mass of each and of all of them.
inline double collect(Lanes scaled, Survivors survivors, FilterScratch& scratch) {
    scratch.ids.clear();
    const Float16 below = splat(survivors.below());
    for (int i = 0; i < scaled.count; i += 16)
        each_bit(lanes_above(scaled.at(i), below), [&](int lane) {
            if (survivors.holds(scaled.values[i + lane], i + lane)) scratch.ids.push_back(i + lane);
        });
    scratch.mass.resize(scratch.ids.size());
    for (std::size_t i = 0; i < scratch.ids.size(); i++)
        scratch.mass[i] = mass_of(scaled.values[scratch.ids[i]]);
    return std::accumulate(scratch.mass.begin(), scratch.mass.end(), 0.0);
}

constexpr int BINS = 1024;
inline int bin_of(float scaled) { return int(std::min(scaled * -32.f, float(BINS - 1))); }

// The token of those collected at which their mass reaches `target`. Masses go into bins by
// value, and only the bin where the target is reached is sorted.
inline Survivors reach(Lanes scaled, double target, FilterScratch& scratch) {
    double in_bin[BINS] = {};
    int edge = 0, last = 0;
    for (std::size_t i = 0; i < scratch.ids.size(); i++) {
        const int bin = bin_of(scaled.values[scratch.ids[i]]);
        in_bin[bin] += scratch.mass[i];
        last = std::max(last, bin);
    }
    double before = 0;
    while (edge < last && before + in_bin[edge] < target) before += in_bin[edge++];
    auto& level = scratch.level;
    level.clear();
    for (const auto id : scratch.ids)
        if (bin_of(scaled.values[id]) == edge) level.push_back(id);
    std::sort(level.begin(), level.end(), Before{scaled.values});
    std::size_t needed = 0;
    do before += mass_of(scaled.values[level[needed++]]);
    while (needed < level.size() && before < target);
    return {scaled.values[level[needed - 1]], level[needed - 1]};
}

// The shortest first part whose mass reaches p of the whole (Holtzman et al., 2020). It nearly
// always lies within a few nats of the best token, so only those are looked at first.
inline Survivors top_p(Lanes scaled, Survivors before, double p, FilterScratch& scratch) {
    if (!before.all()) return reach(scaled, p * collect(scaled, before, scratch), scratch);
    const double target = p * mass_of_row(scaled, 0.f);
    for (float nats = 6; nats < 24; nats += 3)
        if (collect(scaled, {-nats}, scratch) >= target) return reach(scaled, target, scratch);
    collect(scaled, before, scratch);
    return reach(scaled, target, scratch);
}

// Those at least p times as likely as the best (Nguyen et al., 2024). The bits of a float count up
// with it, so the least value that is likely enough is found by halving.
inline Survivors min_p(Survivors before, double p) {
    u32 likely = 0, unlikely = std::bit_cast<u32>(INFINITE);  // of values below 0, without the sign
    while (unlikely - likely > 1) {
        const u32 middle = likely + (unlikely - likely) / 2;
        const bool kept = std::exp(-double(std::bit_cast<float>(middle))) >= p;
        (kept ? likely : unlikely) = middle;
    }
    const float least = -std::bit_cast<float>(likely);
    return least > before.value ? Survivors{least} : before;
}

}  // namespace fewer
