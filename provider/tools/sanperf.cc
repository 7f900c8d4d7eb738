// SPDX-License-Identifier: GPL-2.0-or-later
//
// sanperf.exe: bandwidth and latency of the SAN, with perftest's names, options and columns, and every byte verified.
//
// Client and server agree on each size by control messages: start (client), ready (server: buffers prepared, and exposed for
// RDMA), the measured operations, done (client), result (server: what it found in its memory).
#include "perf.h"

#include <cstdio>
#include <cstring>

namespace sanperf {

namespace {

bool latency_ping_pong(const Options &o) { return o.test->metric == Metric::latency && o.test->verb != Verb::reg; }

// Sets a run's memory up for one size. Latency tests use two halves of a small buffer.
int set_up(Run &run) {
    const uint64_t bytes = latency_ping_pong(run.options) ? 2ull * ((run.size + 4095) & ~4095ull)
                                                          : static_cast<uint64_t>(run.slots) * run.size;
    if (!run.local.alloc(bytes)) return WSAENOBUFS;
    memset(run.local.data(), 0, run.local.size());
    return run.peer.data.register_memory(run.local.data(), run.local.size(), MEM_READWRITE, run.handle);
}

void fill(Run &run) {
    const uint32_t used = run.iterations < run.slots ? run.iterations : run.slots;
    for (uint32_t i = 0; i < used; ++i) {
        unsigned char *slot = run.local.data() + static_cast<uint64_t>(i) * run.size;
        fill_slot(slot, run.size, run.seed, i);
        // For reads the source is never stamped again: let it carry the number that the check will look for.
        stamp_slot(slot, run.size, i + (run.iterations - 1 - i) / run.slots * run.slots);
    }
}

uint32_t slots_for(const Options &options, uint32_t size) {
    const uint64_t n = options.buffer / size;
    return n == 0 ? 1 : n > 0xffffffffu / size ? 0xffffffffu / size : static_cast<uint32_t>(n);
}

// The data of a ping-pong: the first slot's pattern but for the last byte, which is the mark.
bool check_ping_pong(const unsigned char *at, const Run &run) {
    unsigned char expected[4096];
    bool good = true;
    Buffer whole;
    unsigned char *want = expected;
    if (run.size > sizeof expected) {
        if (!whole.alloc(run.size)) return false;
        want = whole.data();
    }
    fill_slot(want, run.size, run.seed, 0);
    good = memcmp(at, want, run.size - 1) == 0;
    return good;
}

int client_size(const Options &options, Peer &peer, uint32_t size, Result &result, const char **what) {
    Run run(options, peer);
    run.size = size;
    run.iterations = default_iterations(options, size);
    run.slots = slots_for(options, size);
    run.seed = static_cast<uint64_t>(sanswitch::now_ms()) << 20 | size;
    result.size = size;
    result.iterations = run.iterations;
    if (options.test->metric == Metric::bandwidth) {
        // Once through all slots that will be used, so that nothing is touched for the first time while it is measured.
        if (run.slots > run.iterations) run.slots = run.iterations;
        run.warm_up = run.slots;
        run.iterations += run.warm_up;
    }

    if (options.test->verb == Verb::reg) {
        *what = "registering";
        return client_registration(run, result);
    }
    *what = "preparing memory";
    int error = set_up(run);
    if (error) return error;
    const bool ping_pong = latency_ping_pong(options);
    if (ping_pong)
        fill_slot(run.local.data(), size, run.seed, 0);
    else if (options.test->verb != Verb::read)
        fill(run);

    // In a write ping-pong the server writes into our memory, too.
    sanswitch::RemoteBuffer ours = {};
    if (ping_pong && options.test->verb == Verb::write)
        *what = "exposing memory", error = peer.data.expose(run.local.data(), run.local.size(), MEM_WRITE, ours);
    Message m = {};
    m.say = Say::start;
    m.size = size;
    m.iterations = run.iterations;
    m.slots = run.slots;
    m.tx_depth = options.tx_depth;
    m.seed = run.seed;
    m.remote = ours;
    if (!error) *what = "starting", error = peer.tell(m);
    if (!error) *what = "waiting for the server", error = peer.hear(m, Say::ready);
    run.remote = m.remote;
    // The server says it again when its receives are posted, or it is ready for the first mark.
    const bool twice = options.test->verb == Verb::send || (ping_pong && options.test->verb == Verb::write);
    if (!error && twice) error = peer.hear(m, Say::ready);
    if (error) return error;

    *what = "the measured operations";
    error = ping_pong ? client_latency(run, result) : client_bandwidth(run, result);
    if (error) return error;
    bool good = true;
    if (options.verify && options.test->verb == Verb::read)
        good = ping_pong ? check_slot(run.local.data() + run.local.size() / 2, size, run.seed, 0, run.iterations - 1)
                         : check_all(run);
    if (options.verify && ping_pong && options.test->verb != Verb::read)
        good = check_ping_pong(run.local.data() + run.local.size() / 2, run);
    m = {};
    m.say = Say::done;
    *what = "waiting for the server's verdict";
    error = peer.tell(m);
    if (!error) error = peer.hear(m, Say::result);
    result.verified = good && m.ok;
    if (ours.length) peer.data.withdraw(ours);
    peer.data.deregister_memory(run.handle);
    return error;
}

int server_size(const Options &options, Peer &peer, const Message &start, bool &good, const char **what) {
    Run run(options, peer);
    run.size = start.size;
    run.iterations = start.iterations;
    run.slots = start.slots;
    run.seed = start.seed;
    run.remote = start.remote;
    *what = "the client's parameters";
    if (run.size == 0 || run.iterations == 0 || run.slots == 0 || static_cast<uint64_t>(run.slots) * run.size > 0xffffffffull)
        return WSAEINVAL;
    *what = "preparing memory";
    int error = set_up(run);
    if (error) return error;
    const bool ping_pong = latency_ping_pong(options);
    const Verb verb = options.test->verb;
    if (ping_pong) {
        fill_slot(run.local.data(), run.size, run.seed, 0);
        if (verb == Verb::read) stamp_slot(run.local.data(), run.size, run.iterations - 1);
    } else if (verb == Verb::read) {
        fill(run);
    }
    Message m = {};
    m.say = Say::ready;
    if (verb != Verb::send)
        *what = "exposing memory",
        error = peer.data.expose(run.local.data(), run.local.size(), verb == Verb::write ? MEM_WRITE : MEM_READ, m.remote);
    sanswitch::RemoteBuffer ours = m.remote;
    if (!error) *what = "answering", error = peer.tell(m);
    if (error) return error;
    *what = "the measured operations";
    if (ping_pong && verb != Verb::read) error = server_latency(run);
    else if (verb == Verb::send) error = server_bandwidth(run);
    if (!error) error = peer.hear(m, Say::done);
    if (error) return error;

    if (ours.length) error = peer.data.withdraw(ours); // before looking: from here on nothing may change it
    bool ok = true;
    if (options.verify && verb != Verb::read)
        ok = ping_pong ? check_ping_pong(run.local.data() + run.local.size() / 2, run) : check_all(run);
    m = {};
    m.say = Say::result;
    m.ok = ok;
    good = good && ok;
    if (!error) *what = "answering", error = peer.tell(m);
    peer.data.deregister_memory(run.handle);
    return error;
}

int report_error(const char *what, int error) {
    fprintf(stderr, "sanperf: %s failed: %s (%d)\n", what, error_text(error), error);
    return 1;
}

} // namespace

const char *error_text(int error) {
    switch (error) {
    case WSA_OPERATION_ABORTED: return "operation aborted";
    case WSAEACCES: return "access denied";
    case WSAEFAULT: return "bad address";
    case WSAEINVAL: return "invalid argument";
    case WSAEMSGSIZE: return "wrong length";
    case WSAEPROTOTYPE: return "unexpected message from the peer";
    case WSAEADDRNOTAVAIL: return "address not available";
    case WSAENETDOWN: return "network is down";
    case WSAENETUNREACH: return "no NIC has that address";
    case WSAECONNABORTED: return "connection aborted";
    case WSAECONNRESET: return "connection reset by the peer";
    case WSAENOBUFS: return "out of resources";
    case WSAENOTCONN: return "not connected";
    case WSAETIMEDOUT: return "timed out";
    case WSAECONNREFUSED: return "connection refused";
    case WSASYSNOTREADY: return "no SAN driver or NIC";
    case WSAEOPNOTSUPP: return "not supported";
    default: return "error";
    }
}

int run_client(const Options &options) {
    Peer peer;
    const char *what = "";
    int error = peer.connect(options, &what);
    if (error) return report_error(what, error);
    Message m = {};
    m.say = Say::hello;
    strncpy(m.test, options.test->name, sizeof m.test - 1);
    error = peer.tell(m);
    if (error) return report_error("greeting the server", error);

    Report report(options);
    report.header();
    bool good = true;
    for (size_t n = 0; nth_size(options, n); ++n) {
        Result result;
        error = client_size(options, peer, nth_size(options, n), result, &what);
        if (error) return report_error(what, error);
        report.line(result);
        if (options.verify && options.test->verb != Verb::reg) good = good && result.verified;
    }
    m = {};
    m.say = Say::bye;
    peer.tell(m);
    if (options.memcpy_rate) report.memcpy_line(measure_memcpy(options.buffer, options.size));
    if (!report.finish()) {
        fprintf(stderr, "sanperf: cannot write %s\n", options.json);
        return 1;
    }
    if (!good) fprintf(stderr, "sanperf: verification failed\n");
    return good ? 0 : 1;
}

int run_server(const Options &options) {
    Peer peer;
    const char *what = "";
    int error = peer.listen_and_accept(options, &what);
    if (error) return report_error(what, error);
    Message m = {};
    error = peer.hear(m, Say::hello);
    if (error) return report_error("waiting for the client's greeting", error);
    m.test[sizeof m.test - 1] = 0;
    if (strcmp(m.test, options.test->name) != 0) {
        fprintf(stderr, "sanperf: the client runs %s, this server %s\n", m.test, options.test->name);
        return 1;
    }
    bool good = true;
    for (;;) {
        error = peer.hear(m, Say::start);
        if (error == WSAEPROTOTYPE && m.say == Say::bye) break;
        if (error) return report_error("waiting for the client", error);
        error = server_size(options, peer, m, good, &what);
        if (error) return report_error(what, error);
    }
    printf("sanperf: %s served, data %s\n", options.test->name, !options.verify ? "not checked" : good ? "verified" : "WRONG");
    return good ? 0 : 1;
}

} // namespace sanperf

int main(int argc, char **argv) {
    sanperf::Options options;
    const int status = sanperf::parse_options(argc, argv, options);
    if (status) return status < 0 ? 0 : status;
    const char *what;
    const int error = sanswitch::startup(options.provider, &what);
    if (error) {
        fprintf(stderr, "sanperf: %s failed: %s (%d)\n", what, sanperf::error_text(error), error);
        return 1;
    }
    const int result = options.server_ip ? sanperf::run_client(options) : sanperf::run_server(options);
    sanswitch::shutdown();
    return result;
}
