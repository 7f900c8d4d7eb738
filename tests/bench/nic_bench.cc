// SPDX-License-Identifier: GPL-2.0-or-later
// nic_bench: the NIC and the fabric against memcpy, in one run. Prints a table, and JSON with --json FILE. Never passes
// or fails.
//
// Two real devices with their engine threads on a real fabric, driven by two small drivers in this process. memcpy is
// one thread, over buffers that cycle through 256 MiB as those of the transfers do.
#include <malloc.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>
#include <thread>

#include "manager.h"
#include "nic/mr_table.h"
#include "sim/device_board.h"

using namespace sim;
using Clock = std::chrono::steady_clock;
using nlohmann::json;

namespace {

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

struct Row {
    std::string what, unit;
    double value, reference;  // reference 0: none
};

class Table {
  public:
    void add(const std::string &what, double value, const std::string &unit, double reference = 0) {
        rows_.push_back({what, unit, value, reference});
        if (reference > 0)
            std::printf("%-58s %12.3f %-6s %10.3f  ratio %.2f\n", what.c_str(), value, unit.c_str(), reference,
                        value / reference);
        else std::printf("%-58s %12.3f %-6s\n", what.c_str(), value, unit.c_str());
        std::fflush(stdout);
    }
    json document() const {
        json j = json::array();
        for (const Row &r : rows_) {
            json row = {{"what", r.what}, {"value", r.value}, {"unit", r.unit}};
            if (r.reference > 0) row["reference"] = r.reference, row["ratio"] = r.value / r.reference;
            j.push_back(row);
        }
        return j;
    }

  private:
    std::vector<Row> rows_;
};

// GB/s of memcpy in pieces of `piece` over `span` bytes.
double memcpy_rate(char *to, const char *from, size_t span, size_t piece) {
    auto copy = [&] {
        for (size_t at = 0; at + piece <= span; at += piece) std::memcpy(to + at, from + at, piece);
    };
    copy();
    size_t bytes = 0;
    auto start = Clock::now();
    do copy(), bytes += span / piece * piece;
    while (seconds_since(start) < 0.25);
    return static_cast<double>(bytes) / seconds_since(start) / 1e9;
}

struct Rig {
    static constexpr uint64_t kSpan = 256u << 20;
    DeviceBoard ba, bb;
    Guest a, b;
    GuestCq acq, bcq;
    GuestQp qa, qb;
    uint64_t abuf = 0, bbuf = 0, akey = 0, bkey = 0;

    Rig(const std::string &path, bool direct)
        : ba(path, "10.0.0.1", kSpan + (16u << 20), direct),
          bb(path, "10.0.0.2", kSpan + (16u << 20), direct),
          a(ba),
          b(bb) {
        ba.run([&] { return ba.link_up() && bb.link_up(); });
        a.start();
        b.start();
        acq = a.create_cq(4096);
        bcq = b.create_cq(256);
        qa = a.create_qp(acq, acq, 128, 64);
        qb = b.create_qp(bcq, bcq, 128, 64);
        ba.run([&] { return connect(a, qa, b, qb, 7000); });
        abuf = a.alloc(kSpan);
        bbuf = b.alloc(kSpan);
        std::memset(ba.ram(abuf), 1, kSpan);
        std::memset(bb.ram(bbuf), 2, kSpan);
        akey = a.register_mr(abuf, kSpan, SNIC_ACCESS_LOCAL_READ | SNIC_ACCESS_LOCAL_WRITE);
        bkey = b.register_mr(bbuf, kSpan, SNIC_ACCESS_ALL, qb.qpn);
    }
    // Operations a second; at most `depth` outstanding, over `span` bytes.
    double rate(uint8_t opcode, uint32_t size, uint32_t depth, uint64_t span, double seconds) {
        uint64_t posted = 0, done = 0, slots = span / size;
        auto pass = [&](double until) {
            auto start = Clock::now();
            uint64_t first = done;
            snic_cqe c;
            unsigned idle = 0;
            while (seconds_since(start) < until) {
                for (int n = 0; n < 16 && posted - done < depth; n++, posted++) {
                    uint64_t at = posted % slots * size;
                    a.post_send(qa, opcode, posted, {{abuf + at, akey, size}}, bbuf + at, bkey);
                }
                if (a.poll(acq, c)) {
                    done++;
                    idle = 0;
                } else if (++idle > 16) {
                    sched_yield();
                }
            }
            return static_cast<double>(done - first) / seconds_since(start);
        };
        pass(0.1);
        double r = pass(seconds);
        snic_cqe c;
        while (done < posted)
            if (a.wait(acq, c)) done++;
            else break;
        return r;
    }
    // Sorted one-way times in microseconds: the target polls the last byte.
    std::vector<double> write_latency(int count) {
        std::vector<double> times;
        auto *flag = reinterpret_cast<volatile uint64_t *>(bb.ram(bbuf));
        snic_cqe c;
        for (int i = 1; i <= count; i++) {
            *reinterpret_cast<uint64_t *>(ba.ram(abuf)) = static_cast<uint64_t>(i) << 32;
            auto start = Clock::now();
            a.post_send(qa, SNIC_WR_RDMA_WRITE, 0, {{abuf, akey, 8}}, bbuf, bkey);
            for (unsigned n = 0; *flag != static_cast<uint64_t>(i) << 32;)
                if (++n > 64) sched_yield();
            times.push_back(seconds_since(start) * 1e6);
            a.wait(acq, c);
        }
        std::sort(times.begin(), times.end());
        return times;
    }
};

size_t allocated() {
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

size_t resident() {
    std::ifstream in("/proc/self/statm");
    size_t total = 0, pages = 0;
    in >> total >> pages;
    return pages * 4096;
}

// Many connected queue pairs on one NIC: what an operation costs then, and what an idle one costs in memory.
void bench_queue_pairs(Table &table, const std::string &path, double seconds) {
    constexpr uint32_t kPairs = 10'000, kEntries = 16, kStride = 128, kDepth = 64, kPerQp = 8;
    constexpr uint64_t kRam = kPairs * (4ull * 4096) + (64u << 20);
    DeviceBoard ba(path, "10.0.1.1", kRam, true, true, kPairs), bb(path, "10.0.1.2", kRam, true, true, kPairs);
    Guest a(ba), b(bb);
    ba.run([&] { return ba.link_up() && bb.link_up(); });
    a.start();
    b.start();
    GuestCq acq = a.create_cq(1024), bcq = b.create_cq(1024);
    uint64_t abuf = a.alloc(4096), bbuf = b.alloc(4096);
    uint64_t akey = a.register_mr(abuf, 4096, SNIC_ACCESS_LOCAL_READ),
             bkey = b.register_mr(bbuf, 4096, SNIC_ACCESS_ALL, SNIC_QPN_ANY);
    std::vector<GuestQp> qa, qb;
    qa.reserve(kPairs);
    qb.reserve(kPairs);
    auto join = [&](uint32_t count) {
        while (qa.size() < count) {
            qa.push_back(a.create_qp(acq, acq, kEntries, kStride));
            qb.push_back(b.create_qp(bcq, bcq, kEntries, kStride));
            if (!connect(a, qa.back(), b, qb.back(), 7000))
                throw std::runtime_error("cannot connect queue pair " + std::to_string(qa.size()));
        }
    };
    // Writes of 8 bytes over the first `used` queue pairs in turn, a second.
    auto rate = [&](uint32_t used) {
        uint64_t posted = 0, done = 0;
        uint32_t depth = std::min(kDepth, used * kPerQp);
        unsigned idle = 0;
        auto pass = [&](double until) {
            auto start = Clock::now();
            uint64_t first = done;
            while (seconds_since(start) < until) {
                for (int n = 0; n < 16 && posted - done < depth; n++, posted++)
                    a.post_send(qa[posted % used], SNIC_WR_RDMA_WRITE, posted, {{abuf, akey, 8}}, bbuf, bkey);
                snic_cqe c;
                if (a.poll(acq, c)) done++, idle = 0;
                else if (++idle > 16) sched_yield();
            }
            return static_cast<double>(done - first) / seconds_since(start);
        };
        pass(0.1);
        double r = pass(seconds);
        snic_cqe c;
        while (done < posted && a.wait(acq, c)) done++;
        return r;
    };
    join(16);
    double few = rate(8), few_all = rate(16);
    size_t before = allocated();
    join(kPairs);
    table.add("memory of an idle connected queue pair",
              static_cast<double>(allocated() - before) / (2.0 * (kPairs - 16)), "bytes");
    table.add("8-byte writes on 8 of 10000 queue pairs (reference: of 16)", rate(8) / 1e6, "M/s", few / 1e6);
    table.add("8-byte writes on 10000 in turn (reference: 16 in turn)", rate(kPairs) / 1e6, "M/s", few_all / 1e6);
}

struct FlatHost : snic::Host {
    uint32_t state = 1;
    std::vector<uint64_t> pages;
    std::byte *map(uint64_t addr, size_t &len, bool) override {
        return len ? reinterpret_cast<std::byte *>(addr) : nullptr;
    }
    snic::RamRef ram_ref(const std::byte *, size_t) override { return {}; }
    uint64_t now_ns() override { return 0; }
    uint32_t random() override { return state = state * 1664525u + 1013904223u; }
    void interrupt(unsigned) override {}
    void log(int, const char *) override {}
};

void bench_tables(Table &table) {
    // Page lists of 64 MiB, read from host memory: 32 level-1 pages below one level-2 page.
    FlatHost host;
    constexpr uint64_t kPages = 16384;
    auto *lists = static_cast<uint64_t *>(std::aligned_alloc(4096, (kPages / 512 + 1) * 4096));
    for (bool contiguous : {true, false}) {
        for (uint64_t i = 0; i < kPages; i++)
            lists[i] = (contiguous ? 0x100000000 + i * 4096 : (i * 2654435761u % kPages) * 8192);
        uint64_t *root = lists + kPages;
        for (uint64_t i = 0; i < kPages / 512; i++) root[i] = reinterpret_cast<uint64_t>(lists + i * 512);
        int rounds = 0;
        auto start = Clock::now();
        do {
            snic::PageMap map;
            if (map.load(host, {reinterpret_cast<uint64_t>(root), 0, 12, 2, 0}, kPages * 4096) != SNIC_OK) std::abort();
            rounds++;
        } while (seconds_since(start) < 0.2);
        table.add(contiguous ? "registration, contiguous pages" : "registration, scattered pages",
                  rounds * double(kPages) / seconds_since(start) / 1e6, "pg/us");
    }
    std::free(lists);
    double first = 0;
    for (uint32_t regions : {10u, 1000u, 100'000u, 1'000'000u}) {
        std::vector<uint64_t> keys;
        keys.resize(regions);
        size_t before = resident();
        snic::MrTable mrs(host, 1u << 21);
        for (uint32_t i = 0; i < regions; i++) {
            snic::Mr *mr = mrs.create();
            mr->pd = 1;
            mr->access = SNIC_ACCESS_ALL;
            mr->va = i * 4096ull;
            mr->length = 4096;
            keys[i] = mr->key;
        }
        if (regions == 1'000'000)
            table.add("memory of a region of one contiguous run", static_cast<double>(resident() - before) / regions,
                      "bytes");
        // A window of 1,000 random regions: the cost of the table, not of the processor's caches for a million of them.
        std::vector<uint32_t> order(1000);
        for (uint32_t &o : order) o = host.random() % regions;
        uint64_t found = 0;
        auto start = Clock::now();
        uint64_t n = 0;
        do {
            for (uint32_t o : order) {
                snic::Mr *mr;
                found += mrs.check_remote(keys[o], 1, 5, o * 4096ull + 8, 64, SNIC_ACCESS_REMOTE_WRITE, mr) ==
                         snic::MrCheck::ok;
            }
            n += order.size();
        } while (seconds_since(start) < 0.1);
        double ns = seconds_since(start) * 1e9 / static_cast<double>(n);
        if (found != n) std::abort();
        if (first == 0) first = ns;
        table.add("key look-up and all checks, " + std::to_string(regions) + " regions", ns, "ns", first);
    }
}

}  // namespace

int main(int argc, char **argv) {
    CLI::App app{"nic_bench: the NIC and the fabric against memcpy"};
    std::string json_file;
    double seconds = 1;
    app.add_option("--json", json_file, "also write the rows as JSON");
    app.add_option("--seconds", seconds, "for each measurement of a rate")
        ->check(CLI::Range(0.1, 60.0))
        ->capture_default_str();
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &e) {
        return app.exit(e) ? 2 : 0;
    }
    spdlog::set_level(spdlog::level::warn);
    std::string path = "/tmp/sanlab-bench-" + std::to_string(getpid()) + ".sock", error;
    auto manager = fabric::Manager::create(path, &error);
    if (!manager) {
        std::fprintf(stderr, "nic_bench: %s\n", error.c_str());
        return 1;
    }
    std::atomic<bool> stop{false};
    std::thread serving([&] {
        while (!stop) manager->serve(50);
    });
    Table table;
    std::printf("%-58s %12s %-6s %10s\n", "what", "value", "unit", "reference");
    for (bool direct : {true, false}) {
        Rig rig(path, direct);
        char *from = rig.ba.ram(rig.abuf), *to = rig.bb.ram(rig.bbuf);
        struct {
            uint32_t size, depth;
        } cases[] = {{1 << 20, 16}, {65536, 32}, {4096, 32}};
        for (auto [size, depth] : cases) {
            double reference = memcpy_rate(to, from, Rig::kSpan, size);
            std::string name = std::to_string(size) + " bytes, " + std::to_string(depth) + " outstanding, 256 MiB";
            const char *kind = direct ? "direct" : "payload";
            table.add(std::string(kind) + " write, " + name,
                      rig.rate(SNIC_WR_RDMA_WRITE, size, depth, Rig::kSpan, seconds) * size / 1e9, "GB/s", reference);
            table.add(std::string(kind) + " read, " + name,
                      rig.rate(SNIC_WR_RDMA_READ, size, depth, Rig::kSpan, seconds) * size / 1e9, "GB/s", reference);
        }
        if (!direct) continue;
        double hot = memcpy_rate(to, from, 1 << 20, 1 << 20);
        table.add("direct write, 1048576 bytes, hot",
                  rig.rate(SNIC_WR_RDMA_WRITE, 1 << 20, 4, 1 << 20, seconds) * (1 << 20) / 1e9, "GB/s", hot);
        table.add("8-byte writes, 64 outstanding", rig.rate(SNIC_WR_RDMA_WRITE, 8, 64, 1 << 20, seconds) / 1e6, "M/s");
        std::vector<double> times = rig.write_latency(20000);
        table.add("8-byte write, one way, median", times[times.size() / 2], "us");
        table.add("8-byte write, one way, 99 %", times[times.size() * 99 / 100], "us");
    }
    bench_queue_pairs(table, path, seconds);
    stop = true;
    serving.join();
    bench_tables(table);
    if (!json_file.empty()) {
        std::ofstream out(json_file);
        out << table.document().dump(2) << '\n';
        if (!out.flush()) {
            std::fprintf(stderr, "nic_bench: cannot write %s\n", json_file.c_str());
            return 1;
        }
    }
    return 0;
}
