// SPDX-License-Identifier: GPL-2.0-or-later
//
// perf_bandwidth.cc: as many operations outstanding as the depth allows, cycling through the buffer.
#include "perf.h"

#include <cstdlib>
#include <cstring>

namespace sanperf {

namespace {

// The operations in flight, oldest first. They complete in order.
class Window {
  public:
    ~Window() {
        for (uint32_t i = 0; i < depth_; ++i)
            if (ops_[i].event) CloseHandle(ops_[i].event);
        ::free(ops_);
    }
    bool init(uint32_t depth, bool events) {
        ops_ = static_cast<sanswitch::Operation *>(calloc(depth, sizeof *ops_));
        if (!ops_) return false;
        depth_ = depth;
        events_ = events;
        for (uint32_t i = 0; i < depth && events; ++i)
            if (!(ops_[i].event = CreateEventA(nullptr, TRUE, FALSE, nullptr))) return false;
        return true;
    }
    bool full() const { return posted_ - done_ == depth_; }
    uint32_t posted() const { return posted_; }
    uint32_t done() const { return done_; }
    sanswitch::Operation &next() {
        sanswitch::Operation &op = ops_[posted_++ % depth_];
        op.prepare(events_);
        return op;
    }
    void undo() { --posted_; }
    // Waits for the oldest.
    int reap(sanswitch::Socket &s, DWORD &bytes, uint32_t timeout_ms) {
        return s.wait(ops_[done_++ % depth_], bytes, timeout_ms);
    }

  private:
    sanswitch::Operation *ops_ = nullptr;
    uint32_t depth_ = 0, posted_ = 0, done_ = 0;
    bool events_ = false;
};

uint32_t window_depth(const Run &run) {
    uint32_t depth = run.options.tx_depth;
    if (depth > run.slots) depth = run.slots; // a slot is stamped anew only when its last operation has ended
    return depth < run.iterations ? depth : run.iterations;
}

sanswitch::Piece piece_of(const Run &run, uint32_t iteration) {
    return {run.local.data() + static_cast<uint64_t>(iteration % run.slots) * run.size, run.size, run.handle};
}

int post(Run &run, sanswitch::Operation &op, uint32_t iteration) {
    const sanswitch::Piece piece = piece_of(run, iteration);
    const uint32_t offset = (iteration % run.slots) * run.size;
    switch (run.options.test->verb) {
    case Verb::write: return run.peer.data.write(op, &piece, 1, run.remote, offset);
    case Verb::read: return run.peer.data.read(op, &piece, 1, run.remote, offset);
    default: return run.peer.data.send(op, &piece, 1);
    }
}

} // namespace

int client_bandwidth(Run &run, Result &result) {
    Window window;
    const uint32_t depth = window_depth(run);
    if (!window.init(depth, run.options.events)) return WSAENOBUFS;
    auto *posted = static_cast<double *>(malloc(2 * run.iterations * sizeof(double)));
    double *completed = posted + run.iterations;
    if (!posted) return WSAENOBUFS;
    const bool outgoing = run.options.test->verb != Verb::read;
    int error = 0;
    DWORD bytes = 0;
    double begin = now_seconds();
    while (!error && window.done() < run.iterations) {
        while (!error && window.posted() < run.iterations && !window.full()) {
            const uint32_t i = window.posted();
            if (outgoing) stamp_slot(static_cast<unsigned char *>(piece_of(run, i).buffer), run.size, i);
            posted[i] = now_seconds();
            error = post(run, window.next(), i);
            if (error) window.undo();
        }
        if (error) break;
        const uint32_t i = window.done();
        error = window.reap(run.peer.data, bytes, run.options.timeout_ms);
        if (!error && bytes != run.size) error = WSAEMSGSIZE;
        completed[i] = now_seconds();
        if (i + 1 == run.warm_up) begin = completed[i];
    }
    result.seconds = now_seconds() - begin;
    // Peak: the best stretch of a window's length, from the posting of its first operation to the completion of its last.
    double best = 0;
    for (uint32_t i = run.warm_up; !error && i + depth <= run.iterations; ++i) {
        const double span = completed[i + depth - 1] - posted[i];
        const double rate = span > 0 ? static_cast<double>(run.size) * depth / span : 0;
        if (rate > best) best = rate;
    }
    free(posted);
    const double mean = static_cast<double>(run.size) * (run.iterations - run.warm_up) / result.seconds;
    result.peak_bytes_per_second = best > mean ? best : mean;
    return error;
}

// Of the bandwidth tests only send needs the server's hands.
int server_bandwidth(Run &run) {
    Window window;
    if (!window.init(window_depth(run), run.options.events)) return WSAENOBUFS;
    int error = 0;
    DWORD bytes = 0;
    bool told = false;
    while (!error && window.done() < run.iterations) {
        while (!error && window.posted() < run.iterations && !window.full()) {
            const uint32_t i = window.posted();
            const sanswitch::Piece piece = piece_of(run, i);
            error = run.peer.data.recv(window.next(), &piece, 1);
            if (error) window.undo();
        }
        if (error) break;
        if (!told) { // the first receives are posted: the client may start
            Message ready = {};
            ready.say = Say::ready;
            error = run.peer.tell(ready);
            told = true;
            continue;
        }
        error = window.reap(run.peer.data, bytes, run.options.timeout_ms);
        if (!error && bytes != run.size) error = WSAEMSGSIZE;
    }
    return error;
}

} // namespace sanperf
