// SPDX-License-Identifier: GPL-2.0-or-later
//
// cache_bench: what a registration costs that the cache serves, with UCX's cache beside it where that is installed.
// Prints a table, and JSON with --json FILE. Never passes or fails.
//
// Native code, and a backend whose registration does nothing, so that the figures are the cache's own. The lock is a
// mutex of the system, as the provider's is. Everything is measured in short rounds, in turn, and medians are shown;
// ratios are those of one round. Two threads are two connections, with all regions in common ("same") or half of them
// each ("own"). Where others use the processors, two threads rarely run at the same time: hence also the least of all
// rounds, and their ratio. scripts/bench adds what a pair of calls costs through the real provider and driver in
// nthost.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <barrier>
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
#ifdef SANLAB_UCX
#include "ucx_cache.h"
#endif

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

using Order = std::vector<uint32_t>;

// Nanoseconds for one of n.
template <typename Work>
double ns_each(uint64_t n, Work work) {
    const auto begin = Clock::now();
    work();
    return std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / static_cast<double>(n);
}

// From `start` on, again and again.
template <typename Pair>
void in_order(const Order &order, uint64_t start, uint64_t operations, Pair pair) {
    uint64_t at = start % order.size();
    for (uint64_t i = 0; i < operations; ++i) {
        pair(kBase + order[at] * kStride);
        if (++at == order.size()) at = 0;
    }
}

// Two threads, from the moment at which both run to the end of the last.
template <typename Work>
double ns_each_of_two(uint64_t n, Work work) {
    std::barrier<> ready(2);
    Clock::time_point begin[2], end[2];
    auto run = [&](int i) {
        ready.arrive_and_wait();
        begin[i] = Clock::now();
        work(i);
        end[i] = Clock::now();
    };
    std::thread second(run, 1);
    run(0);
    second.join();
    const auto took = std::max(end[0], end[1]) - std::min(begin[0], begin[1]);
    return std::chrono::duration<double, std::nano>(took).count() / static_cast<double>(2 * n);
}

class Samples {
  public:
    void add(double value) { values_.push_back(value); }
    double last() const { return values_.back(); }
    double median() const {
        auto sorted = values_;
        std::sort(sorted.begin(), sorted.end());
        return sorted.empty() ? 0 : sorted[sorted.size() / 2];
    }
    double least() const { return values_.empty() ? 0 : *std::min_element(values_.begin(), values_.end()); }

  private:
    std::vector<double> values_;
};

struct Figures {
    uint64_t regions = 0;
    double miss = 0, invalidate = 0, untouched = 0;
    Samples hit, part;
    Samples same, own;  // one of two threads' hits
    Samples scale_same, scale_own;
    double ucx_miss = 0;
    Samples ucx_hit, ucx_scale, ratio;  // UCX's hit in units of ours
};

struct Ours {
    NoBackend backend;
    Cache cache{backend};
    Owner owners[2];

    explicit Ours(uint64_t regions) {
        Config config;
        config.max_count = static_cast<uint32_t>(regions + 16);
        config.max_bytes = ~uint64_t{0} >> 1;
        if (!cache.init(config)) std::abort();
    }
    // Find, reference, release.
    void pair(int owner, uint64_t start, uint64_t length) {
        Entry *entry = nullptr;
        if (cache.acquire(start, length, kRights, &owners[owner], entry) != Status::ok) std::abort();
        cache.release(entry);
    }
};

Figures measure(uint64_t regions, uint64_t operations, unsigned rounds) {
    Figures f;
    f.regions = regions;
    Order order(regions);
    for (uint32_t i = 0; i < regions; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
    Order reversed = order;
    std::reverse(reversed.begin(), reversed.end());
    const auto middle = order.begin() + static_cast<std::ptrdiff_t>(regions / 2);
    const Order same[2] = {order, reversed}, own[2] = {Order(order.begin(), middle), Order(middle, order.end())};

    Ours ours(regions);
    auto pair = [&](int owner) { return [&ours, owner](uint64_t at) { ours.pair(owner, at, kLength); }; };
    f.miss = ns_each(regions, [&] { in_order(order, 0, regions, pair(0)); });
    in_order(order, 0, regions,
             pair(1));  // the second connection has used each once: that is not a hit like the others
#ifdef SANLAB_UCX
    UcxCache ucx;
    auto ucx_pair = [&ucx](uint64_t at) {
        void *region;
        if (!ucx.acquire(at, kLength, region)) std::abort();
        ucx.release(region);
    };
    f.ucx_miss = ns_each(regions, [&] { in_order(order, 0, regions, ucx_pair); });
#endif
    for (unsigned round = 0; round < rounds; ++round) {
        const uint64_t start = round * operations;  // or a large cache would be used in part only
        const double hit = ns_each(operations, [&] { in_order(order, start, operations, pair(0)); });
        f.hit.add(hit);
        f.same.add(ns_each_of_two(operations, [&](int i) { in_order(same[i], start, operations, pair(i)); }));
        f.own.add(ns_each_of_two(operations, [&](int i) { in_order(own[i], start, operations, pair(i)); }));
        f.scale_same.add(hit / f.same.last());
        f.scale_own.add(hit / f.own.last());
        f.part.add(ns_each(operations / 4, [&] {
            in_order(order, start, operations / 4, [&](uint64_t at) { ours.pair(0, at + 64, 1000); });
        }));
#ifdef SANLAB_UCX
        const double ucx_hit = ns_each(operations, [&] { in_order(order, start, operations, ucx_pair); });
        f.ucx_hit.add(ucx_hit);
        f.ucx_scale.add(ucx_hit /
                        ns_each_of_two(operations, [&](int i) { in_order(own[i], start, operations, ucx_pair); }));
        f.ratio.add(ucx_hit / hit);
#endif
    }
    // Invalidation of ranges in which nothing lies, and of single entries.
    constexpr uint64_t looks = 100000;
    f.untouched = ns_each(looks, [&] {
        in_order(order, 0, looks, [&](uint64_t at) { ours.cache.invalidate(at + kLength, kStride - kLength); });
    });
    const uint64_t n = std::min<uint64_t>(regions, 10000);
    f.invalidate = ns_each(n, [&] { in_order(order, 0, n, [&](uint64_t at) { ours.cache.invalidate(at, 1); }); });
    return f;
}

void print_line(const Figures &f) {
    std::printf("%9llu %6.1f %5.1f %6.2f %5.2f %6.2f %5.2f %8.1f %8.1f %10.1f %11.1f",
                static_cast<unsigned long long>(f.regions), f.hit.median(), f.hit.least(), f.scale_same.median(),
                f.hit.least() / f.same.least(), f.scale_own.median(), f.hit.least() / f.own.least(), f.part.median(),
                f.miss, f.invalidate, f.untouched);
#ifdef SANLAB_UCX
    std::printf(" | %8.1f %9.2f %8.1f %9.2f", f.ucx_hit.median(), f.ucx_scale.median(), f.ucx_miss, f.ratio.median());
#endif
    std::printf("\n");
    std::fflush(stdout);
}

nlohmann::json json_of(const Figures &f) {
    nlohmann::json out = {{"regions", f.regions},
                          {"hit_ns", f.hit.median()},
                          {"hit_best_ns", f.hit.least()},
                          {"scale_two_threads", f.scale_same.median()},
                          {"scale_two_threads_best", f.hit.least() / f.same.least()},
                          {"scale_two_threads_own", f.scale_own.median()},
                          {"scale_two_threads_own_best", f.hit.least() / f.own.least()},
                          {"containing_ns", f.part.median()},
                          {"miss_ns", f.miss},
                          {"invalidate_ns", f.invalidate},
                          {"invalidate_nothing_ns", f.untouched},
                          {"ucx", nullptr}};
#ifdef SANLAB_UCX
    out["ucx"] = {{"version", UcxCache::version()},
                  {"hit_ns", f.ucx_hit.median()},
                  {"scale_two_threads_own", f.ucx_scale.median()},
                  {"miss_ns", f.ucx_miss},
                  {"hit_ratio", f.ratio.median()}};
#endif
    return out;
}

}  // namespace

int main(int argc, char **argv) {
    std::string json_file;
    uint64_t operations = 200000;
    unsigned rounds = 15;
    CLI::App app("what a registration costs that the cache serves");
    app.add_option("--json", json_file, "also write the figures there");
    app.add_option("-n", operations, "look-ups for each figure in each round")
        ->check(CLI::Range(uint64_t{1000}, uint64_t{1000000000}));
    app.add_option("--rounds", rounds, "rounds, of which the median is shown")->check(CLI::Range(1u, 101u));
    CLI11_PARSE(app, argc, argv);
    nlohmann::json document;
    std::printf(
        "Nanoseconds, medians of %u rounds. x2: throughput of two threads over that of one. Second figures: of the "
        "best rounds.\n",
        rounds);
    const double processors = std::thread::hardware_concurrency();
    double load = 0;
    if (getloadavg(&load, 1) == 1 && load > processors / 2)
        std::printf("This machine is busy (load %.1f on %.0f processors): what follows is worse than it would be.\n",
                    load, processors);
    std::printf("%9s %12s %12s %12s %8s %8s %10s %11s", "regions", "hit", "x2 same", "x2 own", "part", "miss",
                "invalidate", "inval. none");
#ifdef SANLAB_UCX
    std::printf(" | %8s %9s %8s %9s", "UCX hit", "x2 own", "miss", "UCX/ours");
#endif
    std::printf("\n");
    for (uint64_t regions : {1000, 100000, 1000000}) {
        const Figures f = measure(regions, operations, rounds);
        print_line(f);
        document["cache"].push_back(json_of(f));
    }
#ifndef SANLAB_UCX
    std::printf("UCX: not installed (apt-get install libucx-dev)\n");
#endif
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
