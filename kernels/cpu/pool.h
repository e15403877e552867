// A small pool of threads that runs one function on all of them, step after step.
//
// A step has about six barriers a layer, so waiting must cost nanoseconds when every core is
// free, and must hand the core over when one is not: spin briefly, then yield. (Spinning
// engines fall to a fifth of their speed beside one busy process.)
#pragma once
#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace fewer {

class Pool {
   public:
    explicit Pool(int threads) : threads_(threads) {
        for (int id = 1; id < threads; id++) workers_.emplace_back([this, id] { work(id); });
    }

    ~Pool() {
        quit_.store(true, std::memory_order_relaxed);
        generation_.fetch_add(1, std::memory_order_release);
        generation_.notify_all();
        for (auto& worker : workers_) worker.join();
    }

    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return threads_; }

    // Run body(thread id) on every thread, this one included. Returns when all have returned.
    template <class Body>
    void run(Body& body) {
        call_ = [](void* context, int id) { (*static_cast<Body*>(context))(id); };
        context_ = &body;
        if (threads_ > 1) {
            running_.store(threads_ - 1, std::memory_order_relaxed);
            generation_.fetch_add(1, std::memory_order_release);
            generation_.notify_all();
        }
        body(0);
        for (int spins = 0; running_.load(std::memory_order_acquire) != 0;) relax(spins);
    }

    // Inside run: take indices 0 .. count-1 from a shared counter, `chunk` at a time. A barrier
    // must follow before the next `each`: it resets the counter.
    template <class Task>
    void each(int count, int chunk, Task task) {
        for (;;) {
            const int first = next_.fetch_add(chunk, std::memory_order_relaxed);
            if (first >= count) return;
            for (int i = first; i < std::min(first + chunk, count); i++) task(i);
        }
    }

    // Inside run: wait until every thread is here.
    void barrier() {
        if (threads_ == 1) {
            next_.store(0, std::memory_order_relaxed);
            return;
        }
        const int turn = barrier_turn_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
            arrived_.store(0, std::memory_order_relaxed);
            next_.store(0, std::memory_order_relaxed);
            barrier_turn_.store(turn + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; barrier_turn_.load(std::memory_order_acquire) == turn;) relax(spins);
    }

   private:
    static constexpr int SPINS_BEFORE_YIELD = 200;
    static constexpr int SPINS_BEFORE_SLEEP = 20000;

    static void relax(int& spins) {
        if (++spins < SPINS_BEFORE_YIELD) _mm_pause();
        else sched_yield();
    }

    void work(int id) {
        for (int seen = 0;;) {
            int spins = 0;
            while (generation_.load(std::memory_order_acquire) == seen) {
                if (++spins < SPINS_BEFORE_SLEEP) _mm_pause();
                else generation_.wait(seen, std::memory_order_acquire);
            }
            seen = generation_.load(std::memory_order_acquire);
            if (quit_.load(std::memory_order_relaxed)) return;
            call_(context_, id);
            running_.fetch_sub(1, std::memory_order_release);
        }
    }

    const int threads_;
    void (*call_)(void*, int) = nullptr;
    void* context_ = nullptr;
    std::atomic<bool> quit_{false};
    alignas(64) std::atomic<int> generation_{0};
    alignas(64) std::atomic<int> running_{0};
    alignas(64) std::atomic<int> next_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> barrier_turn_{0};
    std::vector<std::thread> workers_;  // last: they use everything above
};

}  // namespace fewer
