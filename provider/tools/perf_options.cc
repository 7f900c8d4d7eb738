// SPDX-License-Identifier: GPL-2.0-or-later
#include "perf.h"
#include "sanlab_version.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace sanperf {

namespace {

constexpr TestName tests[] = {
    {"write_bw", "RDMA_Write BW Test", Verb::write, Metric::bandwidth},
    {"read_bw", "RDMA_Read BW Test", Verb::read, Metric::bandwidth},
    {"send_bw", "Send BW Test", Verb::send, Metric::bandwidth},
    {"write_lat", "RDMA_Write Latency Test", Verb::write, Metric::latency},
    {"read_lat", "RDMA_Read Latency Test", Verb::read, Metric::latency},
    {"send_lat", "Send Latency Test", Verb::send, Metric::latency},
    {"reg_lat", "Memory Registration Latency Test", Verb::reg, Metric::latency},
    {"reg_rate", "Memory Registration Rate Test", Verb::reg, Metric::rate},
};
constexpr size_t test_count = sizeof tests / sizeof tests[0];

constexpr uint32_t max_message = 1u << 30;
constexpr uint64_t max_buffer = 1ull << 32;

void usage(FILE *out) {
    fprintf(out, "Usage: sanperf TEST [options]          start a server and wait for a client\n"
                 "       sanperf TEST [options] SERVER   run TEST against the server at that address\n\n"
                 "TEST:");
    for (const TestName &test : tests) fprintf(out, " %s", test.name);
    fprintf(out, "\n\n"
                 "  -s, --size=N          message size in bytes, K, M or G (default 65536; latency: 8)\n"
                 "  -a, --all             all sizes from 2 to 8388608\n"
                 "  -n, --iters=N         operations per size (default: by test and size)\n"
                 "  -t, --tx-depth=N      outstanding operations, 1..4096 (default 64)\n"
                 "  -p, --port=N          port (default 18515)\n"
                 "  -B, --bind=ADDRESS    local address (default: the NIC's)\n"
                 "  -e, --events          wait for notified completions instead of polling\n"
                 "      --buffer=N        bytes that the operations cycle through (default 16M)\n"
                 "      --memcpy          also measure memcpy over a buffer of that size\n"
                 "      --no-verify       do not check the data\n"
                 "      --timeout=SECONDS how long to wait for the peer (default 30)\n"
                 "      --json=FILE       write the results as JSON, too (- for standard output)\n"
                 "      --provider=DLL    provider to load (default sanprov.dll)\n"
                 "  -h, --help            this text\n"
                 "      --version         the version of this program\n");
}

int wrong(const char *option, const char *value, const char *accepted) {
    fprintf(stderr, "sanperf: %s: \"%s\" is not accepted; %s\n", option, value ? value : "", accepted);
    return 2;
}

// A number with K, M or G behind it.
bool parse_number(const char *text, uint64_t least, uint64_t most, uint64_t &out) {
    char *end;
    if (!text || *text < '0' || *text > '9') return false;
    unsigned long n = strtoul(text, &end, 10); // 32 bits: larger ones come with a suffix
    uint64_t value = n;
    if (*end == 'K' || *end == 'k') value <<= 10, ++end;
    else if (*end == 'M' || *end == 'm') value <<= 20, ++end;
    else if (*end == 'G' || *end == 'g') value <<= 30, ++end;
    if (*end || value < least || value > most) return false;
    out = value;
    return true;
}

bool parse_ip(const char *text, uint32_t &out) {
    uint32_t ip = 0;
    for (int part = 0; part < 4; ++part) {
        char *end;
        if (*text < '0' || *text > '9') return false;
        const unsigned long n = strtoul(text, &end, 10);
        if (n > 255 || *end != (part < 3 ? '.' : '\0')) return false;
        ip = ip << 8 | static_cast<uint32_t>(n);
        text = end + 1;
    }
    out = ip;
    return ip != 0;
}

struct OptionName {
    char letter;
    const char *name;
    bool takes_value;
};
constexpr OptionName names[] = {{'s', "size", true},   {'a', "all", false},      {'n', "iters", true},
                                {'t', "tx-depth", true}, {'p', "port", true},    {'B', "bind", true},
                                {'e', "events", false}, {'b', "buffer", true},   {'m', "memcpy", false},
                                {'V', "no-verify", false}, {'T', "timeout", true}, {'j', "json", true},
                                {'P', "provider", true}, {'h', "help", false},    {'v', "version", false}};

const OptionName *match(const char *argument, const char *&value) {
    value = nullptr;
    for (const OptionName &o : names) {
        const size_t length = strlen(o.name);
        const bool has_letter = strchr("santpBeh", o.letter) != nullptr;
        if (argument[1] != '-') {
            if (!has_letter || argument[1] != o.letter) continue;
            if (argument[2]) value = argument + 2;
            return &o;
        }
        if (strncmp(argument + 2, o.name, length) != 0) continue;
        if (argument[2 + length] == '=') value = argument + 3 + length;
        else if (argument[2 + length]) continue;
        return &o;
    }
    return nullptr;
}

int apply(const OptionName &o, const char *value, Options &options) {
    uint64_t n = 0;
    switch (o.letter) {
    case 's':
        if (!parse_number(value, 1, max_message, n)) return wrong("--size", value, "1 to 1G bytes are");
        options.size = static_cast<uint32_t>(n);
        options.size_given = true;
        return 0;
    case 'n':
        if (!parse_number(value, 1, 100000000, n)) return wrong("--iters", value, "1 to 100000000 are");
        options.iterations = static_cast<uint32_t>(n);
        return 0;
    case 't':
        if (!parse_number(value, 1, 4096, n)) return wrong("--tx-depth", value, "1 to 4096 are");
        options.tx_depth = static_cast<uint32_t>(n);
        return 0;
    case 'p':
        if (!parse_number(value, 1, 65535, n)) return wrong("--port", value, "1 to 65535 are");
        options.port = static_cast<uint16_t>(n);
        return 0;
    case 'b':
        if (!parse_number(value, 1, max_buffer - 1, n)) return wrong("--buffer", value, "1 byte to less than 4G are");
        options.buffer = n;
        return 0;
    case 'T':
        if (!parse_number(value, 1, 3600, n)) return wrong("--timeout", value, "1 to 3600 seconds are");
        options.timeout_ms = static_cast<uint32_t>(n) * 1000;
        return 0;
    case 'B':
        return parse_ip(value, options.bind_ip) ? 0 : wrong("--bind", value, "an IPv4 address like 10.0.0.1 is");
    case 'a': options.all_sizes = true; return 0;
    case 'e': options.events = true; return 0;
    case 'm': options.memcpy_rate = true; return 0;
    case 'V': options.verify = false; return 0;
    case 'j': options.json = value; return 0;
    case 'P': options.provider = value; return 0;
    default: return 0;
    }
}

} // namespace

const TestName *all_tests(size_t *count) {
    *count = test_count;
    return tests;
}

const TestName *find_test(const char *name) {
    for (const TestName &test : tests)
        if (strcmp(test.name, name) == 0) return &test;
    return nullptr;
}

int parse_options(int argc, char **argv, Options &options) {
    for (int i = 1; i < argc; ++i) {
        const char *argument = argv[i], *value;
        if (argument[0] != '-' || !argument[1]) {
            if (!options.test) {
                options.test = find_test(argument);
                if (!options.test) {
                    usage(stderr);
                    return wrong("TEST", argument, "see the list above");
                }
            } else if (options.server_ip) {
                return wrong("SERVER", argument, "a server has been given already");
            } else if (!parse_ip(argument, options.server_ip)) {
                return wrong("SERVER", argument, "an IPv4 address like 10.0.0.1 is");
            }
            continue;
        }
        const OptionName *option = match(argument, value);
        if (!option) return wrong("option", argument, "sanperf --help lists the options");
        if (option->letter == 'h') {
            usage(stdout);
            return -1; // help was asked for: not an error
        }
        if (option->letter == 'v') {
            printf("sanperf " SANLAB_VERSION "\n");
            return -1;
        }
        if (option->takes_value && !value) {
            if (i + 1 == argc) return wrong(argument, "", "it needs a value");
            value = argv[++i];
        }
        if (!option->takes_value && value) return wrong(argument, value, "it takes no value");
        const int status = apply(*option, value, options);
        if (status) return status;
    }
    if (!options.test) {
        usage(stderr);
        return 2;
    }
    if (!options.size_given && options.test->metric == Metric::latency && options.test->verb != Verb::reg) options.size = 8;
    return 0;
}

uint32_t default_iterations(const Options &options, uint32_t size) {
    if (options.iterations) return options.iterations;
    if (options.test->verb == Verb::reg) return size >= 1 << 20 ? 50 : 500;
    if (options.test->metric == Metric::latency) return 1000;
    // About 2 GiB per size, within reason.
    uint64_t n = (2048ull << 20) / size;
    if (n > 20000) n = 20000;
    if (n < 100) n = 100;
    return static_cast<uint32_t>(n);
}

uint32_t nth_size(const Options &options, size_t n) {
    if (!options.all_sizes) return n == 0 ? options.size : 0;
    if (options.test->verb == Verb::reg) return n <= 12 ? 4096u << n : 0; // 4 KiB .. 16 MiB
    return n < 23 ? 2u << n : 0;                                          // 2 .. 8 MiB
}

} // namespace sanperf
