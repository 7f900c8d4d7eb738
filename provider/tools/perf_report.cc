// SPDX-License-Identifier: GPL-2.0-or-later
#include "perf.h"

#include <cstdio>
#include <cstring>

namespace sanperf {

namespace {
constexpr double mebi = 1048576.0; // perftest's MB
constexpr const char *rule =
    "---------------------------------------------------------------------------------------------------------------\n";
const char *yes_no(const Options &options, bool verified) { return !options.verify ? "-" : verified ? "yes" : "NO"; }
double average(const Result &r) { return static_cast<double>(r.size) * r.iterations / r.seconds; }
double message_rate(const Result &r) { return r.iterations / r.seconds / 1e6; }
} // namespace

void Report::header() {
    printf("%s                    %s\n", rule, options_.test->title);
    printf(" Completions: %s   TX depth: %u   Buffer: %u MiB%s\n%s", options_.events ? "events" : "polled", options_.tx_depth,
           static_cast<unsigned>(options_.buffer >> 20),
           options_.test->metric == Metric::bandwidth ? "   MB: 2^20 bytes" : "", rule);
    if (options_.test->verb == Verb::reg)
        printf(" #bytes     #iterations    uncached[usec]    cached[usec]    uncached[reg/sec]    cached[reg/sec]\n");
    else if (options_.test->metric == Metric::bandwidth)
        printf(" #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]   verified\n");
    else
        printf(" #bytes  #iterations  t_min[usec]  t_max[usec]  t_typical[usec]  t_avg[usec]  t_stdev[usec]  "
               "99%% percentile[usec]  99.9%% percentile[usec]  verified\n");
    fflush(stdout);
}

void Report::line(const Result &r) {
    if (count_ < max_results) results_[count_++] = r;
    if (options_.test->verb == Verb::reg)
        printf(" %-10u %-14u %-17.2f %-15.2f %-20.0f %-17.0f\n", r.size, r.iterations, r.uncached, r.cached,
               1e6 / r.uncached, 1e6 / r.cached);
    else if (options_.test->metric == Metric::bandwidth)
        printf(" %-10u %-14u %-18.2f %-20.2f %-15.6f %s\n", r.size, r.iterations, r.peak_bytes_per_second / mebi,
               average(r) / mebi, message_rate(r), yes_no(options_, r.verified));
    else
        printf(" %-7u %-12u %-12.2f %-12.2f %-16.2f %-12.2f %-14.2f %-21.2f %-23.2f %s\n", r.size, r.iterations, r.t_min,
               r.t_max, r.t_typical, r.t_avg, r.t_stdev, r.t_99, r.t_999, yes_no(options_, r.verified));
    fflush(stdout);
}

bool Report::finish() {
    printf("%s", rule);
    if (memcpy_rate_ > 0) printf(" memcpy over the same buffer: %.2f MB/sec\n", memcpy_rate_ / mebi);
    fflush(stdout);
    if (!options_.json) return true;
    FILE *out = strcmp(options_.json, "-") == 0 ? stdout : fopen(options_.json, "w");
    if (!out) return false;
    fprintf(out, "{\n  \"test\": \"%s\",\n  \"tx_depth\": %u,\n  \"buffer\": %u,\n  \"events\": %s,\n", options_.test->name,
            options_.tx_depth, static_cast<unsigned>(options_.buffer), options_.events ? "true" : "false");
    if (memcpy_rate_ > 0) fprintf(out, "  \"memcpy_bytes_per_second\": %.0f,\n", memcpy_rate_);
    fprintf(out, "  \"results\": [");
    for (size_t i = 0; i < count_; ++i) {
        const Result &r = results_[i];
        fprintf(out, "%s\n    {\"size\": %u, \"iterations\": %u", i ? "," : "", r.size, r.iterations);
        if (options_.test->verb == Verb::reg)
            fprintf(out, ", \"uncached_usec\": %.3f, \"cached_usec\": %.3f}", r.uncached, r.cached);
        else if (options_.test->metric == Metric::bandwidth)
            fprintf(out, ", \"bytes_per_second\": %.0f, \"peak_bytes_per_second\": %.0f, \"msg_rate_mpps\": %.6f", average(r),
                    r.peak_bytes_per_second, message_rate(r));
        else
            fprintf(out, ", \"t_min\": %.3f, \"t_max\": %.3f, \"t_typical\": %.3f, \"t_avg\": %.3f, \"t_stdev\": %.3f, "
                         "\"p99\": %.3f, \"p999\": %.3f",
                    r.t_min, r.t_max, r.t_typical, r.t_avg, r.t_stdev, r.t_99, r.t_999);
        if (options_.test->verb != Verb::reg)
            fprintf(out, ", \"verified\": %s}", !options_.verify ? "null" : r.verified ? "true" : "false");
    }
    fprintf(out, "\n  ]\n}\n");
    return out == stdout ? fflush(out) == 0 : fclose(out) == 0;
}

} // namespace sanperf
