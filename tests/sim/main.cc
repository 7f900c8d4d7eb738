// SPDX-License-Identifier: GPL-2.0-or-later
// simulate: runs random programs, one for each seed; a failing one prints how to replay it and the smallest shape that
// still fails.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "program.h"

namespace {

void shrink(uint64_t seed, sim::Shape shape) {
    // Greedy: each step is kept if the seed still fails.
    for (bool smaller = true; smaller;) {
        smaller = false;
        auto attempt = [&](auto &&change) {
            sim::Shape next = shape;
            change(next);
            if (sim::run_program(seed, next).ok) return;
            shape = next;
            smaller = true;
        };
        if (shape.faults) attempt([](auto &s) { s.faults = false; });
        if (shape.upsets) attempt([](auto &s) { s.upsets = false; });
        if (shape.nics > 2) attempt([](auto &s) { s.nics--; });
        if (shape.pairs > 1) attempt([](auto &s) { s.pairs--; });
        if (shape.ops > 1) attempt([](auto &s) { s.ops /= 2; });
    }
    sim::Verdict v = sim::run_program(seed, shape);
    std::printf("  smallest: simulate --seed %llu --nics %u --pairs %u --ops %u%s%s: %s\n",
                static_cast<unsigned long long>(seed), shape.nics, shape.pairs, shape.ops,
                shape.faults ? "" : " --no-faults", shape.upsets ? "" : " --no-upsets", v.what.c_str());
}

}  // namespace

int main(int argc, char **argv) {
    CLI::App app{"simulate: random programs over simulated NICs, checked against a model"};
    uint64_t first = 1, count = 200, one = 0;
    std::string shard = "0/1";
    sim::Shape shape;
    bool no_faults = false, no_upsets = false;
    app.add_option("--first", first, "first seed")->capture_default_str();
    app.add_option("--seeds", count, "number of seeds")->capture_default_str();
    app.add_option("--seed", one, "run this seed only");
    app.add_option("--shard", shard, "I/N: run every N-th seed, beginning with the I-th")->capture_default_str();
    app.add_option("--nics", shape.nics, "NICs")->check(CLI::Range(2, 8))->capture_default_str();
    app.add_option("--pairs", shape.pairs, "connections")->check(CLI::Range(1, 8))->capture_default_str();
    app.add_option("--ops", shape.ops, "operations of each side of a connection")
        ->check(CLI::Range(1, 100000))
        ->capture_default_str();
    app.add_flag("--no-faults", no_faults, "a fabric that loses and damages nothing");
    app.add_flag("--no-upsets", no_upsets, "no disconnects, dead links or bad keys");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &e) {
        return app.exit(e) ? 2 : 0;
    }
    shape.faults = !no_faults;
    shape.upsets = !no_upsets;
    unsigned long long part = 0, parts = 1;
    if (std::sscanf(shard.c_str(), "%llu/%llu", &part, &parts) != 2 || parts == 0 || part >= parts) {
        std::fprintf(stderr, "simulate: --shard '%s' is not of the form I/N with I < N\n", shard.c_str());
        return 2;
    }
    if (one) first = one, count = 1, part = 0, parts = 1;

    auto start = std::chrono::steady_clock::now();
    uint64_t passed = 0, failed = 0, completions = 0, retransmits = 0;
    for (uint64_t seed = first; seed < first + count; seed++) {
        if (seed % parts != part) continue;
        sim::Verdict v = sim::run_program(seed, shape);
        completions += v.completions;
        retransmits += v.retransmits;
        if (v.ok) {
            passed++;
            continue;
        }
        failed++;
        std::printf("seed %llu FAILED: %s\n  replay: simulate --seed %llu --nics %u --pairs %u --ops %u%s%s\n",
                    static_cast<unsigned long long>(seed), v.what.c_str(), static_cast<unsigned long long>(seed),
                    shape.nics, shape.pairs, shape.ops, no_faults ? " --no-faults" : "",
                    no_upsets ? " --no-upsets" : "");
        std::fflush(stdout);
        shrink(seed, shape);
        if (failed == 5) {
            std::printf("five seeds failed; stopping\n");
            break;
        }
    }
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("simulated: %llu seeds, %llu completions, %llu retransmissions in %.1f s\n",
                static_cast<unsigned long long>(passed + failed), static_cast<unsigned long long>(completions),
                static_cast<unsigned long long>(retransmits), seconds);
    std::printf("%llu passed, %llu failed, 0 skipped\n", static_cast<unsigned long long>(passed),
                static_cast<unsigned long long>(failed));
    return failed ? 1 : 0;
}
