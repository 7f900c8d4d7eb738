// SPDX-License-Identifier: GPL-2.0-or-later
#include "report.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <vector>

#include "paths.h"

namespace lab {

using nlohmann::json;

double measure_memcpy() {
    constexpr size_t kBuffer = size_t{256} << 20, kPiece = size_t{1} << 20;
    std::vector<char> from(kBuffer, 1), to(kBuffer, 2);
    auto start = std::chrono::steady_clock::now();
    double seconds = 0;
    size_t bytes = 0;
    while (seconds < 0.3) {
        for (size_t at = 0; at < kBuffer; at += kPiece) std::memcpy(&to[at], &from[at], kPiece);
        bytes += kBuffer;
        seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    return static_cast<double>(bytes) / seconds;
}

void print_ratio(std::FILE *out, const json &document) {
    constexpr double kMebi = 1048576;  // sanperf's MB, which is perftest's
    double memcpy_rate = document.value("memcpy_bytes_per_second", 0.0), best = 0;
    unsigned long long size = 0;
    for (const json &r : document["results"])
        if (r.value("bytes_per_second", 0.0) > best)
            best = r.value("bytes_per_second", 0.0), size = r.value("size", 0ull);
    if (memcpy_rate > 0 && best > 0)
        std::fprintf(out, " %llu bytes: %.2f MB/sec, %.2f of memcpy (%.2f MB/sec)\n", size, best / kMebi,
                     best / memcpy_rate, memcpy_rate / kMebi);
}

void print_table(std::FILE *out, const json &document) {
    std::fprintf(out, "%-10s %-18s %9s %10s %8s %9s %9s %9s %9s  %s\n", "test", "direction", "bytes", "iterations",
                 "GB/s", "Mmsg/s", "min[us]", "typ[us]", "99%[us]", "verified");
    for (const json &r : document["results"]) {
        std::string direction = r.value("from", "") + "->" + r.value("to", "");
        bool bandwidth = r.contains("bytes_per_second");
        auto number = [](double v, int digits) {
            char text[32];
            std::snprintf(text, sizeof text, "%.*f", digits, v);
            return std::string(text);
        };
        std::string gbs = bandwidth ? number(r["bytes_per_second"].get<double>() / 1e9, 2) : "-";
        std::string rate = bandwidth ? number(r["msg_rate_mpps"], 4) : "-";
        std::string low = bandwidth ? "-" : number(r["t_min"], 2),
                    typical = bandwidth ? "-" : number(r["t_typical"], 2);
        std::string p99 = bandwidth ? "-" : number(r["p99"], 2);
        const json verified = r.value("verified", json());
        std::fprintf(out, "%-10s %-18s %9llu %10llu %8s %9s %9s %9s %9s  %s\n", r.value("test", "").c_str(),
                     direction.c_str(), static_cast<unsigned long long>(r.value("size", 0)),
                     static_cast<unsigned long long>(r.value("iterations", 0)), gbs.c_str(), rate.c_str(), low.c_str(),
                     typical.c_str(), p99.c_str(),
                     verified.is_null()     ? "-"
                     : verified.get<bool>() ? "yes"
                                            : "NO");
    }
    double best = 0, memcpy_rate = document.value("memcpy_bytes_per_second", 0.0);
    for (const json &r : document["results"])
        if (r.value("size", 0) == 1 << 20 && r.value("test", "") == "write_bw")
            best = std::max(best, r.value("bytes_per_second", 0.0));
    std::fprintf(out, "%s; memcpy on the host: %.2f GB/s", document.value("place", "").c_str(), memcpy_rate / 1e9);
    if (best > 0) std::fprintf(out, "; 1 MiB writes reach %.2f of it", best / memcpy_rate);
    std::fprintf(out, "; GB: 10^9 bytes\n");
}

void check_json_file(const std::string &file) {
    if (file.empty() || file == "-") return;
    const bool there = std::filesystem::exists(file);
    if (there && !std::filesystem::is_regular_file(file) && !std::filesystem::is_directory(file))
        return;  // a pipe, a terminal
    const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        throw UserError("--json " + file + ": " + std::strerror(errno) + "; it takes a file that can be written, or -");
    close(fd);
    if (!there) unlink(file.c_str());
}

void write_json(const std::string &file, const json &document) {
    if (file.empty()) return;
    if (file == "-") {
        std::cout << document.dump(2) << std::endl;
        return;
    }
    std::ofstream out(file);
    out << document.dump(2) << '\n';
    if (!out.flush()) throw std::runtime_error("cannot write " + file);
}

bool all_verified(const json &document) {
    for (const json &r : document["results"])
        if (r.contains("verified") && r["verified"].is_boolean() && !r["verified"].get<bool>()) return false;
    return true;
}

}  // namespace lab
