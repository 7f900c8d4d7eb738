// SPDX-License-Identifier: GPL-2.0-or-later
//
// perf_latency.cc: ping-pong. write_lat and send_lat report half of a round trip; read_lat a whole read.
#include "perf.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace sanperf {

namespace {

constexpr unsigned spins_before_yield = 16;

// The local buffer's halves: what is sent, and where the peer's data arrives.
unsigned char *out_half(const Run &run) { return run.local.data(); }
unsigned char *in_half(const Run &run) { return run.local.data() + run.local.size() / 2; }
uint32_t in_offset(const Run &run) { return static_cast<uint32_t>(run.local.size() / 2); }

// Waits for the last byte of the incoming buffer to become the mark of this iteration.
int await_mark(const Run &run, unsigned char mark) {
    const volatile unsigned char *last = in_half(run) + run.size - 1;
    const uint64_t end = sanswitch::now_ms() + run.options.timeout_ms;
    for (unsigned n = 1; *last != mark; ++n) {
        YieldProcessor();
        if (n % spins_before_yield) continue;
        Sleep(0);
        if (sanswitch::now_ms() >= end) return WSAETIMEDOUT;
    }
    return 0;
}

unsigned char mark_of(uint32_t iteration) { return static_cast<unsigned char>(iteration % 255 + 1); } // never 0

int complete(Run &run, sanswitch::Operation &op, int error) {
    DWORD bytes = 0;
    if (!error) error = run.peer.data.wait(op, bytes, run.options.timeout_ms);
    return !error && bytes != run.size ? WSAEMSGSIZE : error;
}

int write_out(Run &run, sanswitch::Operation &op, uint32_t iteration) {
    out_half(run)[run.size - 1] = mark_of(iteration);
    op.prepare(run.options.events);
    const sanswitch::Piece piece = {out_half(run), run.size, run.handle};
    return complete(run, op, run.peer.data.write(op, &piece, 1, run.remote, in_offset(run)));
}

int send_out(Run &run, sanswitch::Operation &op, uint32_t iteration) {
    out_half(run)[run.size - 1] = mark_of(iteration);
    op.prepare(run.options.events);
    const sanswitch::Piece piece = {out_half(run), run.size, run.handle};
    return complete(run, op, run.peer.data.send(op, &piece, 1));
}

int post_receive(Run &run, sanswitch::Operation &op) {
    op.prepare(run.options.events);
    const sanswitch::Piece piece = {in_half(run), run.size, run.handle};
    return run.peer.data.recv(op, &piece, 1);
}

int await_receive(Run &run, sanswitch::Operation &op, uint32_t iteration) {
    const int error = complete(run, op, 0);
    return !error && in_half(run)[run.size - 1] != mark_of(iteration) ? WSAEPROTOTYPE : error;
}

int one_read(Run &run, sanswitch::Operation &op) {
    op.prepare(run.options.events);
    const sanswitch::Piece piece = {in_half(run), run.size, run.handle};
    return complete(run, op, run.peer.data.read(op, &piece, 1, run.remote, 0));
}

void statistics(double *times, uint32_t n, double scale, Result &r) {
    for (uint32_t i = 0; i < n; ++i) times[i] *= scale;
    std::sort(times, times + n);
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < n; ++i) sum += times[i];
    r.t_avg = sum / n;
    for (uint32_t i = 0; i < n; ++i) squares += (times[i] - r.t_avg) * (times[i] - r.t_avg);
    r.t_stdev = std::sqrt(squares / n);
    r.t_min = times[0];
    r.t_max = times[n - 1];
    r.t_typical = times[n / 2];
    r.t_99 = times[static_cast<uint32_t>(n * 0.99)];
    r.t_999 = times[static_cast<uint32_t>(n * 0.999)];
}

struct Operations {
    sanswitch::Operation out, in;
    ~Operations() {
        if (out.event) CloseHandle(out.event);
        if (in.event) CloseHandle(in.event);
    }
    bool init(bool events) {
        if (!events) return true;
        out.event = CreateEventA(nullptr, TRUE, FALSE, nullptr);
        in.event = CreateEventA(nullptr, TRUE, FALSE, nullptr);
        return out.event && in.event;
    }
};

} // namespace

int client_latency(Run &run, Result &result) {
    Operations ops;
    if (!ops.init(run.options.events)) return WSAENOBUFS;
    auto *times = static_cast<double *>(malloc(run.iterations * sizeof(double)));
    if (!times) return WSAENOBUFS;
    int error = 0;
    const double begin = now_seconds();
    for (uint32_t i = 0; i < run.iterations && !error; ++i) {
        const double start = now_seconds();
        switch (run.options.test->verb) {
        case Verb::write:
            error = write_out(run, ops.out, i);
            if (!error) error = await_mark(run, mark_of(i));
            break;
        case Verb::read: error = one_read(run, ops.out); break;
        default:
            error = post_receive(run, ops.in);
            if (!error) error = send_out(run, ops.out, i);
            if (!error) error = await_receive(run, ops.in, i);
        }
        times[i] = now_seconds() - start;
    }
    result.seconds = now_seconds() - begin;
    if (!error) statistics(times, run.iterations, run.options.test->verb == Verb::read ? 1e6 : 0.5e6, result);
    free(times);
    return error;
}

int server_latency(Run &run) {
    Operations ops;
    if (!ops.init(run.options.events)) return WSAENOBUFS;
    const bool send = run.options.test->verb == Verb::send;
    int error = send ? post_receive(run, ops.in) : 0;
    Message ready = {};
    ready.say = Say::ready;
    if (!error) error = run.peer.tell(ready);
    for (uint32_t i = 0; i < run.iterations && !error; ++i) {
        if (!send) {
            error = await_mark(run, mark_of(i));
            if (!error) error = write_out(run, ops.out, i);
            continue;
        }
        error = await_receive(run, ops.in, i);
        if (!error && i + 1 < run.iterations) error = post_receive(run, ops.in);
        if (!error) error = send_out(run, ops.out, i);
    }
    return error;
}

// Registering and deregistering: what it costs to lock, register, deregister and unlock, which the cache callback makes the
// cache do in the end; then what it costs when the cache serves it.
int client_registration(Run &run, Result &result) {
    Buffer buffer;
    if (!buffer.alloc(run.size)) return WSAENOBUFS;
    memset(buffer.data(), 1, buffer.size());
    sanswitch::Socket &s = run.peer.data;
    auto pair = [&] {
        HANDLE handle;
        const int error = s.register_memory(buffer.data(), run.size, MEM_READWRITE, handle);
        return error ? error : s.deregister_memory(handle);
    };
    double start = now_seconds();
    for (uint32_t i = 0; i < run.iterations; ++i) {
        int error = pair();
        if (error) return error;
        // What the system says when the memory goes away.
        if (sanswitch::extensions().cache_callback) sanswitch::extensions().cache_callback(buffer.data(), run.size, &error);
    }
    const double uncached = now_seconds() - start;
    if (const int error = pair()) return error;
    start = now_seconds();
    for (uint32_t i = 0; i < run.iterations; ++i)
        if (const int error = pair()) return error;
    const double cached = now_seconds() - start;
    result.uncached = uncached * 1e6 / run.iterations;
    result.cached = cached * 1e6 / run.iterations;
    result.seconds = uncached + cached;
    return 0;
}

} // namespace sanperf
