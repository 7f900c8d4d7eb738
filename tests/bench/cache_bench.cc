// SPDX-License-Identifier: GPL-2.0-or-later
// cache_bench: what a registration costs that the cache serves. Prints a table, and JSON with --json FILE. Never passes or fails.
//
// Native code, and a backend whose registration does nothing, so that the figures are the cache's own. The lock is a mutex of the system,
// as the provider's is. scripts/bench adds what a pair of calls costs through the real provider and driver in nthost.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "provider/regcache/regcache.h"

using namespace regcache;
using Clock = std::chrono::steady_clock;

namespace {

class NoBackend : public Backend {
  public:
    void lock() override { mutex_.lock(); }
    void unlock() override { mutex_.unlock(); }
    void *allocate(size_t bytes) override { return std::malloc(bytes); }
    void free(void *memory) override { std::free(memory); }
    void pause() override { std::this_thread::yield(); }
    uint32_t thread_number() override {
        static std::atomic<uint32_t> threads{0};
        static thread_local const uint32_t number = threads++;
        return number;
    }
    Status pin(uint64_t, uint64_t, uint32_t, Owner *, Region &region) override {
        region.id = region.key = ++next_;
        return Status::ok;
    }
    Status expose(Region &, uint32_t, Owner *) override { return Status::ok; }
    Status revoke(Region &) override { return Status::ok; }
    void unpin(Region &) override {}

  private:
    std::mutex mutex_;
    std::atomic<uint64_t> next_{0};
};

constexpr uint64_t kBase = 0x100000000, kLength = 4096, kStride = 8192;  // regions that do not touch
constexpr uint32_t kRights = local_read | local_write;

double ns_each(Clock::time_point begin, uint64_t n) {
    return std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / static_cast<double>(n);
}

struct Figures {
    uint64_t regions;
    double miss, hit, hit2, containing, invalidate, untouched;
};

// Find, reference, release, in random order. Nanoseconds for one.
double hits(Cache &cache, Owner &owner, const std::vector<uint32_t> &order, uint64_t operations, uint64_t offset, uint64_t length) {
    auto begin = Clock::now();
    for (uint64_t i = 0, at = 0; i < operations; ++i) {
        Entry *entry = nullptr;
        if (cache.acquire(kBase + order[at] * kStride + offset, length, kRights, &owner, entry) != Status::ok) std::abort();
        cache.release(entry);
        if (++at == order.size()) at = 0;
    }
    return ns_each(begin, operations);
}

Figures measure(uint64_t regions, uint64_t operations) {
    NoBackend backend;
    Figures f{};
    f.regions = regions;
    Cache cache(backend);
    Config config;
    config.max_count = static_cast<uint32_t>(regions + 16);
    config.max_bytes = ~uint64_t{0} >> 1;
    if (!cache.init(config)) std::abort();
    std::vector<uint32_t> order(regions);
    for (uint32_t i = 0; i < regions; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
    Owner owner, other;
    f.miss = hits(cache, owner, order, regions, 0, kLength);
    f.hit = 1e9;
    for (int i = 0; i < 3; ++i) f.hit = std::min(f.hit, hits(cache, owner, order, operations, 0, kLength));
    f.containing = hits(cache, owner, order, operations / 4, 64, 1000);
    auto reversed = order;
    std::reverse(reversed.begin(), reversed.end());
    auto begin = Clock::now();
    std::thread second([&] { hits(cache, other, reversed, operations, 0, kLength); });
    hits(cache, owner, order, operations, 0, kLength);
    second.join();
    f.hit2 = ns_each(begin, 2 * operations);
    // Invalidation of ranges in which nothing lies, and of single entries.
    begin = Clock::now();
    for (uint64_t i = 0; i < 100000; ++i) cache.invalidate(kBase + order[i % regions] * kStride + kLength, kStride - kLength);
    f.untouched = ns_each(begin, 100000);
    uint64_t n = std::min<uint64_t>(regions, 10000);
    begin = Clock::now();
    for (uint64_t i = 0; i < n; ++i) cache.invalidate(kBase + order[i] * kStride, 1);
    f.invalidate = ns_each(begin, n);
    return f;
}

}  // namespace

int main(int argc, char **argv) {
    std::string json_file;
    uint64_t operations = 2000000;
    CLI::App app("what a registration costs that the cache serves");
    app.add_option("--json", json_file, "also write the figures there");
    app.add_option("-n", operations, "look-ups for each figure")->check(CLI::Range(uint64_t{1000}, uint64_t{1000000000}));
    CLI11_PARSE(app, argc, argv);
    nlohmann::json document;
    std::printf("%9s %9s %9s %12s %9s %12s %14s %14s\n", "regions", "hit ns", "miss ns", "part-hit ns", "2 thr. ns", "2 thr. scale",
                "invalidate ns", "inval. none ns");
    for (uint64_t regions : {1000, 100000, 1000000}) {
        Figures f = measure(regions, operations);
        std::printf("%9llu %9.1f %9.1f %12.1f %9.1f %12.2f %14.1f %14.1f\n", static_cast<unsigned long long>(f.regions), f.hit, f.miss,
                    f.containing, f.hit2, f.hit / f.hit2, f.invalidate, f.untouched);
        std::fflush(stdout);
        document["cache"].push_back({{"regions", f.regions}, {"hit_ns", f.hit}, {"miss_ns", f.miss}, {"containing_ns", f.containing},
                                     {"hit_two_threads_ns", f.hit2}, {"scale_two_threads", f.hit / f.hit2},
                                     {"invalidate_ns", f.invalidate}, {"invalidate_nothing_ns", f.untouched}});
    }
    if (!json_file.empty()) {
        std::ofstream out(json_file);
        out << document.dump(2) << '\n';
        if (!out.flush()) {
            std::fprintf(stderr, "cache_bench: cannot write %s\n", json_file.c_str());
            return 1;
        }
    }
    return 0;
}
