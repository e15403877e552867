// Memory of one model: an arena on 2 MiB pages for weights and scratch, and plain maps for KV.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace fewer {

// Owns everything it hands out; freed at once when it ends. Pieces are aligned to 128 bytes and
// zeroed. Small pieces share pages: a 2 MiB page for each matrix would cost 240 MB more.
class Arena {
 public:
    Arena() = default;
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    ~Arena() {
        for (const auto& map : maps_) munmap(map.address, map.bytes);
    }

    template <class T>
    T* take(std::size_t count) {
        return reinterpret_cast<T*>(take_bytes(count * sizeof(T)));
    }

 private:
    static constexpr std::size_t PAGE_BYTES = std::size_t(2) << 20;
    static constexpr std::size_t CHUNK_BYTES = std::size_t(32) << 20;
    struct Map {
        void* address;
        std::size_t bytes;
    };

#if defined(__SANITIZE_ADDRESS__)
    // The sanitizer guards pieces of the heap, not pieces of a map.
    char* take_bytes(std::size_t bytes) {
        pieces_.emplace_back(static_cast<char*>(std::aligned_alloc(128, (bytes + 127) / 128 * 128)),
                             std::free);
        ASAN_POISON_MEMORY_REGION(pieces_.back().get() + bytes, (bytes + 127) / 128 * 128 - bytes);
        return static_cast<char*>(std::memset(pieces_.back().get(), 0, bytes));
    }
    std::vector<std::unique_ptr<char, void (*)(void*)>> pieces_;
#else
    char* take_bytes(std::size_t count) {
        const std::size_t bytes = (count + 127) / 128 * 128;
        if (bytes > CHUNK_BYTES / 4) return map(bytes);
        if (bytes > left_) {
            next_ = map(CHUNK_BYTES);
            left_ = CHUNK_BYTES;
        }
        char* piece = next_;
        next_ += bytes;
        left_ -= bytes;
        return piece;
    }
#endif

    char* map(std::size_t bytes) {
        const std::size_t total = ((bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1)) + PAGE_BYTES;
        void* address = mmap(nullptr, total, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (address == MAP_FAILED) throw std::bad_alloc();
        maps_.push_back({address, total});
        const auto start = reinterpret_cast<std::size_t>(address);
        char* aligned = reinterpret_cast<char*>((start + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1));
        madvise(aligned, total - PAGE_BYTES, MADV_HUGEPAGE);
        return aligned;
    }

    std::vector<Map> maps_;
    char* next_ = nullptr;
    std::size_t left_ = 0;
};

}  // namespace fewer
