// SPDX-License-Identifier: GPL-2.0-or-later
#include "conformance.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace santest {

Check *first_check;

namespace {
struct PendingPartner {
    unsigned id;
    void (*body)(Context &);
};
PendingPartner partners[256];
unsigned partner_count;

Check *find(unsigned id) {
    for (Check *c = first_check; c; c = c->next)
        if (c->id == id) return c;
    return nullptr;
}
} // namespace

// Sorted by id. Partners may have been registered before their check: static objects know no order across files.
Register::Register(Check &check) {
    Check **at = &first_check;
    while (*at && (*at)->id < check.id) at = &(*at)->next;
    check.next = *at;
    *at = &check;
    for (unsigned i = 0; i < partner_count; ++i)
        if (partners[i].id == check.id) check.partner = partners[i].body;
}

void register_partner(unsigned id, void (*body)(Context &)) {
    if (partner_count < sizeof partners / sizeof partners[0]) partners[partner_count++] = {id, body};
    if (Check *check = find(id)) check->partner = body;
}

void Context::fail(const char *format, ...) {
    if (failed()) return; // the first reason counts
    va_list args;
    va_start(args, format);
    vsnprintf(text_, sizeof text_, format, args);
    va_end(args);
    text_[sizeof text_ - 1] = 0;
}

bool Context::expect_equal(const char *what, long long expected, long long seen, int line) {
    if (expected == seen) return true;
    fail("%s, line %d: %s: expected %I64d, seen %I64d", client ? "client" : "partner", line, what, expected, seen);
    return false;
}

bool Context::expect_true(const char *what, bool seen, int line) {
    if (!seen) fail("%s, line %d: not true: %s", client ? "client" : "partner", line, what);
    return seen;
}

// What the halves tell each other.
struct Context::Word {
    enum Kind : uint32_t { value = 1, remote, verdict } kind;
    uint32_t failed;
    uint64_t number;
    RemoteBuffer remote_buffer;
    char text[256];
};
static_assert(sizeof(uint64_t) * 2 + sizeof(RemoteBuffer) + 256 <= santools::Channel::max_message);

// Sends ours and takes the other's. False: there is none any more for this check.
bool Context::exchange(Word &word) {
    if (partner_ended_ || channel_lost) return false;
    const Word::Kind kind = word.kind;
    int error = channel_->tell(&word, sizeof word);
    if (!error) error = channel_->hear(&word, sizeof word);
    if (error) {
        channel_lost = true;
        fail("the partner does not answer (%d)", error);
        return false;
    }
    if (word.kind == Word::verdict && kind != Word::verdict) {
        partner_ended_ = true;
        fail("%s", word.failed ? word.text : "the other half ended before this one");
        // Our verdict is still owed, and was not sent: the other takes the value that we sent for it.
        return false;
    }
    return true;
}

uint64_t Context::sync(uint64_t number) {
    Word word = {};
    word.kind = Word::value;
    word.number = number;
    return exchange(word) ? word.number : 0;
}

void Context::give(const RemoteBuffer &buffer) {
    Word word = {};
    word.kind = Word::remote;
    word.remote_buffer = buffer;
    exchange(word);
}

RemoteBuffer Context::take() {
    Word word = {};
    word.kind = Word::remote;
    return exchange(word) ? word.remote_buffer : RemoteBuffer{};
}

// Each half sends exactly one verdict or, having found out that the other has ended, none. Whoever ends first takes what
// the other sent last in place of its verdict.
void Context::finish() {
    if (!channel_ || channel_lost || partner_ended_) return;
    Word word = {};
    word.kind = Word::verdict;
    word.failed = failed();
    memcpy(word.text, text_, sizeof word.text);
    if (!exchange(word)) return;
    if (word.kind == Word::verdict && word.failed) fail("%s", word.text);
    if (word.kind != Word::verdict && !failed()) fail("this half ended before the other one");
}

bool Context::listener(Socket &l, int backlog) {
    if (!client) {
        int error = l.open();
        if (!error) error = l.bind(0, port);
        if (!error) error = l.listen(backlog);
        if (error) fail("partner: listening on port %u failed: %d", port, error);
    }
    return sync() && !failed();
}

bool Context::connect(Socket &s) {
    Socket l;
    if (!listener(l, 4)) return false;
    int error;
    if (client) {
        error = s.open();
        if (!error) error = s.bind(own_ip, santools::any_port());
        if (!error) error = s.connect(peer_ip, port, patience_ms);
    } else {
        error = l.accept(s, patience_ms);
    }
    if (error) fail("%s: connecting failed: %d", client ? "client" : "partner", error);
    return sync() && !failed(); // the listener stays until the accepted side has been seen
}

void idle_partner(Context &t) {
    Socket s;
    if (!t.connect(s)) return;
    t.sync();
}

namespace {
template <typename Post> int now(Socket &s, DWORD &bytes, Post post) {
    Operation op;
    op.prepare(false);
    int error = post(op);
    if (!error) error = s.wait(op, bytes, patience_ms);
    // Still pending, it would end when `op` is no more: closing ends it now.
    if (error == WSAETIMEDOUT && !op.finished()) s.close();
    return error;
}
} // namespace

int send_now(Socket &s, const Piece &piece) {
    DWORD bytes;
    return now(s, bytes, [&](Operation &op) { return s.send(op, &piece, 1); });
}

int recv_now(Socket &s, const Piece &piece, DWORD &bytes) {
    return now(s, bytes, [&](Operation &op) { return s.recv(op, &piece, 1); });
}

int write_now(Socket &s, const Piece &piece, const RemoteBuffer &target, uint32_t offset) {
    DWORD bytes;
    return now(s, bytes, [&](Operation &op) { return s.write(op, &piece, 1, target, offset); });
}

int read_now(Socket &s, const Piece &piece, const RemoteBuffer &target, uint32_t offset) {
    DWORD bytes;
    return now(s, bytes, [&](Operation &op) { return s.read(op, &piece, 1, target, offset); });
}

} // namespace santest
