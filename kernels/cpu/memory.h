// Memory of one model: an arena on 2 MiB pages for weights and scratch, and plain maps for KV.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <vector>

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
        const std::size_t bytes = (count * sizeof(T) + 127) & ~std::size_t(127);
        if (bytes > CHUNK_BYTES / 4) return reinterpret_cast<T*>(map(bytes));
        if (bytes > left_) {
            next_ = map(CHUNK_BYTES);
            left_ = CHUNK_BYTES;
        }
        char* piece = next_;
        next_ += bytes;
        left_ -= bytes;
        return reinterpret_cast<T*>(piece);
    }

 private:
    static constexpr std::size_t PAGE_BYTES = std::size_t(2) << 20;
    static constexpr std::size_t CHUNK_BYTES = std::size_t(32) << 20;
    struct Map {
        void* address;
        std::size_t bytes;
    };

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
