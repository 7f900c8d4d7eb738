// SPDX-License-Identifier: GPL-2.0-or-later
//
// perf.h: sanperf's parts. Options; a peer (two connections: one for control messages, one that is measured); the tests; the
// report. Names, options and columns are perftest's.
#pragma once

#include "channel.h"

namespace sanperf {

enum class Verb { write, read, send, reg };
enum class Metric { bandwidth, latency, rate };

struct TestName {
    const char *name;  // write_bw
    const char *title; // RDMA_Write BW Test
    Verb verb;
    Metric metric;
};
const TestName *find_test(const char *name); // nullptr: unknown
const TestName *all_tests(size_t *count);

struct Options {
    const TestName *test = nullptr;
    uint32_t server_ip = 0; // 0: be the server
    uint32_t bind_ip = 0;   // 0: the NIC's first address
    uint16_t port = 18515;
    uint32_t size = 65536;
    bool all_sizes = false;     // 2^1 .. 2^23
    bool size_given = false;
    uint32_t iterations = 0;    // 0: by test and size
    uint32_t tx_depth = 64;     // outstanding operations
    uint64_t buffer = 16 << 20; // bytes that the operations cycle through
    uint32_t timeout_ms = 30000;// for the peer
    bool events = false;        // notified completions instead of polled ones
    bool verify = true;
    bool memcpy_rate = false;   // measure memcpy over the same buffer, too
    const char *json = nullptr; // file, "-" for standard output
    const char *provider = nullptr;
};
// 0, or an exit status: the message has been printed.
int parse_options(int argc, char **argv, Options &options);
uint32_t default_iterations(const Options &options, uint32_t size);
// The sizes to run: n-th, 0 at the end.
uint32_t nth_size(const Options &options, size_t n);

// One line of the table.
struct Result {
    uint32_t size = 0, iterations = 0;
    bool verified = false;
    double seconds = 0, peak_bytes_per_second = 0;
    // Latency, microseconds.
    double t_min = 0, t_max = 0, t_typical = 0, t_avg = 0, t_stdev = 0, t_99 = 0, t_999 = 0;
    // Registration, microseconds: without and with the cache.
    double uncached = 0, cached = 0;
};

class Report {
  public:
    explicit Report(const Options &options) : options_(options) {}
    void header();
    void line(const Result &result);
    void memcpy_line(double bytes_per_second) { memcpy_rate_ = bytes_per_second; }
    // False: the JSON file could not be written.
    bool finish();

  private:
    static constexpr size_t max_results = 32;
    const Options &options_;
    Result results_[max_results];
    size_t count_ = 0;
    double memcpy_rate_ = 0;
};

using santools::Buffer;

// What the two sides say to each other.
enum class Say : uint32_t { hello = 1, start, ready, done, result, bye };
struct Message {
    uint32_t magic;
    Say say;
    char test[16];
    uint32_t size, iterations;
    uint32_t slots, tx_depth;
    uint64_t seed;
    uint64_t buffer;
    uint32_t ok, reserved;
    sanswitch::RemoteBuffer remote;
};

class Peer {
  public:
    // Both return 0 or a Winsock error, with *what.
    int listen_and_accept(const Options &options, const char **what);
    int connect(const Options &options, const char **what);

    int tell(const Message &message);
    // WSAEPROTOTYPE: it was another message, which is stored all the same.
    int hear(Message &message, Say expected);

    sanswitch::Socket data;

  private:
    sanswitch::Socket listener_;
    santools::Channel control_;
};

// What a test works with, on either side.
struct Run {
    Run(const Options &o, Peer &p) : options(o), peer(p) {}
    const Options &options;
    Peer &peer;
    Buffer local;  // what is sent from or received into
    HANDLE handle = nullptr;
    sanswitch::RemoteBuffer remote = {}; // the peer's
    uint32_t size = 0;
    uint32_t warm_up = 0;    // of the iterations, not measured: bandwidth tests go through the buffer once
    uint32_t iterations = 0; // in all
    uint32_t slots = 0;      // pieces of `size` that the operations cycle through
    uint64_t seed = 0;
};

// Data: every slot has a pattern of its own with the number of its last use in front.
void fill_slot(unsigned char *slot, uint32_t size, uint64_t seed, uint32_t index);
void stamp_slot(unsigned char *slot, uint32_t size, uint32_t iteration);
// Whether the slot holds what fill_slot and the last stamp_slot made of it.
bool check_slot(const unsigned char *slot, uint32_t size, uint64_t seed, uint32_t index, uint32_t iteration);
// All slots that `iterations` uses of them have touched, each with its last stamp.
bool check_all(const Run &run);

// The measured part of a test, 0 or a Winsock error; and what the other side does meanwhile.
int client_bandwidth(Run &run, Result &result);
int server_bandwidth(Run &run);
int client_latency(Run &run, Result &result);
int server_latency(Run &run);
int client_registration(Run &run, Result &result);

double now_seconds();
double measure_memcpy(uint64_t buffer, uint32_t size);

int run_client(const Options &options);
int run_server(const Options &options);
const char *error_text(int error);

} // namespace sanperf
