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
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace fewer {

class Pool {
 public:
    // Throws std::runtime_error when the system has no more threads to give.
    explicit Pool(int threads) : threads_(threads) {
        try {
            for (int id = 1; id < threads; id++) workers_.emplace_back([this, id] { work(id); });
        } catch (const std::system_error& error) {
            stop();
            throw std::runtime_error("cannot start " + std::to_string(threads) +
                                     " threads: " + error.what());
        }
    }

    ~Pool() { stop(); }

    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return threads_; }

    // Run body(thread id) on every thread, this one included. Returns when all have returned,
    // so a body may read what belongs to the caller to its very end. It must not throw.
    template <class Body>
    void run(Body& body) {
        call_ = [](void* context, int id) { (*static_cast<Body*>(context))(id); };
        context_ = &body;
        next_.store(0, std::memory_order_relaxed);
        if (threads_ > 1) {
            running_.store(threads_ - 1, std::memory_order_relaxed);
            generation_.fetch_add(1, std::memory_order_release);
            generation_.notify_all();
        }
        body(0);
        spin_until([&] { return running_.load(std::memory_order_acquire) == 0; });
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

    // Inside run: wait until every thread is here. What each wrote before, all may read after.
    void barrier() {
        if (threads_ == 1) {
            next_.store(0, std::memory_order_relaxed);
            return;
        }
        const int turn = barrier_turn_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
            arrived_.store(0, std::memory_order_relaxed);
            next_.store(0, std::memory_order_relaxed);
            barrier_turn_.store(turn + 1, std::memory_order_release);
            return;
        }
        spin_until([&] { return barrier_turn_.load(std::memory_order_acquire) != turn; });
    }

 private:
    static constexpr int PAUSES = 200;               // about 5 microseconds
    static constexpr int YIELDS_BEFORE_SLEEP = 600;  // some tenths of a millisecond

    template <class Done>
    static void spin_until(Done done) {
        for (int i = 0; i < PAUSES; i++) {
            if (done()) return;
            _mm_pause();
        }
        while (!done()) sched_yield();
    }

    // Between the steps of one stream the caller is back within tenths of a millisecond, less
    // than a sleeper takes to wake.
    int await_next(int seen) {
        for (int i = 0; i < PAUSES + YIELDS_BEFORE_SLEEP; i++) {
            const int now = generation_.load(std::memory_order_acquire);
            if (now != seen) return now;
            if (i < PAUSES)
                _mm_pause();
            else
                sched_yield();
        }
        generation_.wait(seen, std::memory_order_acquire);
        return generation_.load(std::memory_order_acquire);
    }

    void work(int id) {
        for (int seen = 0;;) {
            seen = await_next(seen);
            if (quit_.load(std::memory_order_relaxed)) return;
            call_(context_, id);
            running_.fetch_sub(1, std::memory_order_release);
        }
    }

    void stop() {
        quit_.store(true, std::memory_order_relaxed);
        generation_.fetch_add(1, std::memory_order_release);
        generation_.notify_all();
        for (auto& worker : workers_) worker.join();
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
