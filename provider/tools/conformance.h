// SPDX-License-Identifier: GPL-2.0-or-later
//
// conformance.h: the frame of santest. A check carries the number of the rule that it proves (WSD-nnn) and its text. Solo
// checks need one machine. Pair checks have two halves that run at the same time on two machines; they keep in step by
// sync(), and a failure of either half fails the check.
//
//     SOLO(53, "AF_INET, SOCK_STREAM, IPPROTO_TCP only") { ... EXPECT_EQ(WSAEAFNOSUPPORT, error); }
//     PAIR(140, "RDMA data is placed before a later message") { client half }
//     PARTNER(140) { server half }
#pragma once

#include "channel.h"

namespace santest {

using santools::Buffer;
using sanswitch::Operation;
using sanswitch::Piece;
using sanswitch::RemoteBuffer;
using sanswitch::Socket;

constexpr uint32_t patience_ms = 5000; // for anything that ought to happen

class Context {
  public:
    bool failed() const { return text_[0] != 0; }
    const char *text() const { return text_; }
    void fail(const char *format, ...) __attribute__((format(ms_printf, 2, 3)));
    bool expect_equal(const char *what, long long expected, long long seen, int line);
    bool expect_true(const char *what, bool seen, int line);

    // --- pair checks
    bool client = true;
    uint32_t own_ip = 0, peer_ip = 0;
    uint16_t port = 0; // of this check's listener
    // Both halves meet here and exchange a value. The other's value; 0 and failed when the other half has ended.
    uint64_t sync(uint64_t value = 1);
    void give(const RemoteBuffer &buffer);
    RemoteBuffer take();
    // A connected socket on both sides. False: failed.
    bool connect(Socket &s);
    // Server: a listener; client: waits until there is one.
    bool listener(Socket &l, int backlog);

  private:
    friend int run_pair(Context &, santools::Channel &);
    char text_[256] = {};
    santools::Channel *channel_ = nullptr;
    bool partner_ended_ = false;
    struct Word;
    bool exchange(Word &word);

  public:
    void attach(santools::Channel *channel) { channel_ = channel; }
    // The end of a pair check: both tell their verdict.
    void finish();
    bool channel_lost = false;
};

struct Check {
    unsigned id;
    const char *text;
    bool pair;
    void (*body)(Context &);
    void (*partner)(Context &);
    Check *next;
    unsigned with = 0;            // proven by the body of another rule
    const char *reason = nullptr; // why it cannot be shown here
};
extern Check *first_check;

struct Register {
    Register(Check &check);
};
void register_partner(unsigned id, void (*body)(Context &));
struct RegisterPartner {
    RegisterPartner(unsigned id, void (*body)(Context &)) { register_partner(id, body); }
};

// A rule that the body of `other` proves as well.
#define WITH(id, other, text)                                                                                           \
    static santest::Check entry_##id = {id, text, false, nullptr, nullptr, nullptr, other, nullptr};                    \
    static santest::Register register_##id(entry_##id)
// A rule about what only Windows itself has.
#define NOT_HERE(id, text, why)                                                                                         \
    static santest::Check entry_##id = {id, text, false, nullptr, nullptr, nullptr, 0, why};                            \
    static santest::Register register_##id(entry_##id)

#define SANTEST_CHECK(id, text, pair)                                                                                   \
    static void check_##id(santest::Context &t);                                                                        \
    static santest::Check entry_##id = {id, text, pair, check_##id, nullptr, nullptr, 0, nullptr};                      \
    static santest::Register register_##id(entry_##id);                                                                 \
    static void check_##id([[maybe_unused]] santest::Context &t)
#define SOLO(id, text) SANTEST_CHECK(id, text, false)
#define PAIR(id, text) SANTEST_CHECK(id, text, true)
#define PARTNER(id)                                                                                                     \
    static void partner_##id(santest::Context &t);                                                                      \
    static santest::RegisterPartner register_partner_##id(id, partner_##id);                                            \
    static void partner_##id([[maybe_unused]] santest::Context &t)

// On failure they note expected and seen, and leave the check.
#define EXPECT_EQ(expected, seen)                                                                                       \
    do {                                                                                                                \
        if (!t.expect_equal(#seen, static_cast<long long>(expected), static_cast<long long>(seen), __LINE__)) return;   \
    } while (0)
#define EXPECT(condition)                                                                                               \
    do {                                                                                                                \
        if (!t.expect_true(#condition, (condition), __LINE__)) return;                                                  \
    } while (0)

// How most pair checks begin, on both machines: `s` is connected, and `m` that much memory registered on it.
#define CONNECTED()                                                                                                     \
    santest::Socket s;                                                                                                  \
    if (!t.connect(s)) return
#define CONNECTED_WITH(...)                                                                                             \
    CONNECTED();                                                                                                        \
    santest::Memory m;                                                                                                  \
    EXPECT_EQ(0, m.make(s, __VA_ARGS__))

// Another process of this machine: this program again, which does what it is told.
class Child {
  public:
    enum Verb : uint32_t { exit_process = 1, take, take_listener, duplicate, send, receive, accept, connect, cleanup, die };
    struct Message {
        uint32_t verb, error, token, process, value;
        uint32_t created; // switch handles that were made for it
        uint32_t ip, port;
    };
    Child() = default;
    ~Child();
    Child(const Child &) = delete;
    Child &operator=(const Child &) = delete;
    bool start();
    DWORD id() const { return process_.dwProcessId; }
    // Sends the verb and waits for the answer. False: there is none.
    bool ask(Message &message, uint32_t timeout_ms = patience_ms);
    // Waits for the end of the process. False: it goes on.
    bool ended();

  private:
    PROCESS_INFORMATION process_ = {};
    HANDLE go_ = nullptr, done_ = nullptr;
    DWORD value_ = 0; // distinguishes this process's children
};
int run_child(const char *name); // what main() does in such a process

// santest --stress (check_stress.cc), on both machines. An exit status.
struct Stress {
    bool client;
    uint32_t own_ip, peer_ip;
    uint16_t port; // of the first thread
    uint32_t rounds, seed;
};
int run_stress(const Stress &stress);

// Registered memory on a socket.
struct Memory {
    Buffer buffer;
    HANDLE handle = nullptr;
    int make(Socket &s, size_t bytes, DWORD flags = MEM_READWRITE) {
        if (!buffer.alloc(bytes)) return WSAENOBUFS;
        return s.register_memory(buffer.data(), bytes, flags, handle);
    }
    Piece piece(size_t offset, uint32_t length) const { return {buffer.data() + offset, length, handle}; }
    unsigned char *data() const { return buffer.data(); }
};

// Posts and waits: the operation's end, or WSAETIMEDOUT.
int send_now(Socket &s, const Piece &piece);
int recv_now(Socket &s, const Piece &piece, DWORD &bytes);
int write_now(Socket &s, const Piece &piece, const RemoteBuffer &target, uint32_t offset);
int read_now(Socket &s, const Piece &piece, const RemoteBuffer &target, uint32_t offset);

// A partner that only connects, and waits for the end.
void idle_partner(Context &t);

} // namespace santest
