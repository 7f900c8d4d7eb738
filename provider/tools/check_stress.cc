// SPDX-License-Identifier: GPL-2.0-or-later
//
// check_stress.cc: santest --stress: on two machines four threads each register, deregister, expose, transfer, free, protect and
// allocate again at the same address, all of a machine in one registration cache. Each thread owns some memory and knows every
// byte of it; so a byte that comes through a registration which ought to be dead is found.
//
// Thread n here and thread n there have a connection for what they tell each other, and one for data, which ends whenever a stale
// key is used, and is made anew. Both know from the seed what comes next (plan_), so they tell each other results only. What
// the other threads do in the meantime is the machine's business.
#include "conformance.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace santest {

namespace {

constexpr uint32_t threads = 4, slots = 6, slot_bytes = 65536, slot_pages = slot_bytes / 4096;
constexpr uint32_t in_flight = 8;
constexpr uint32_t window_bytes = 1 << 20, windows_at_a_time = 128;

struct Shared {
    unsigned char *volatile slot[threads][slots]; // what the others may register, if it is there
    volatile LONG failed;
    char text[256];
};
Shared shared;

void report(const char *format, ...) __attribute__((format(ms_printf, 1, 2)));
void report(const char *format, ...) {
    if (InterlockedExchange(&shared.failed, 1)) return; // the first one counts
    va_list args;
    va_start(args, format);
    vsnprintf(shared.text, sizeof shared.text, format, args);
    va_end(args);
    shared.text[sizeof shared.text - 1] = 0;
}

#define MUST(condition)                                                                                                 \
    do {                                                                                                                \
        if (!(condition)) {                                                                                             \
            report("thread %u, round %u, line %d: not true: %s (error %d)", number_, round_, __LINE__, #condition, error_); \
            return;                                                                                                     \
        }                                                                                                               \
    } while (0)

// From one thread to its partner.
struct Note {
    int32_t error;
    uint32_t number;
    uint64_t content;
    RemoteBuffer buffer;
};
static_assert(sizeof(Note) <= santools::Channel::max_message);

class Worker {
  public:
    uint32_t transfers = 0, cut_short = 0, refused = 0, reused = 0, protections = 0, windows = 0, connections = 0;

    void start(uint32_t number, const Stress &stress) {
        number_ = number;
        stress_ = stress;
        plan_ = stress.seed * 0x9E3779B97F4A7C15ull + number + 1;
        own_ = plan_ ^ (stress.client ? 0x5555555555555555 : 0x3333333333333333);
        thread_ = CreateThread(nullptr, 0, [](LPVOID self) -> DWORD {
            static_cast<Worker *>(self)->run();
            return 0;
        }, this, 0, nullptr);
        if (!thread_) report("thread %u could not be started", number);
    }
    void end() {
        if (!thread_) return;
        WaitForSingleObject(thread_, INFINITE); // each of its waits is bounded
        CloseHandle(thread_);
    }

  private:
    struct Slot {
        unsigned char *at = nullptr;
        uint64_t content = 0; // what it is filled with
    };

    static uint64_t draw(uint64_t &from, uint64_t below) {
        from ^= from << 13;
        from ^= from >> 7;
        from ^= from << 17;
        return (from >> 16) % below;
    }
    uint64_t planned(uint64_t below) { return draw(plan_, below); } // the same on both sides
    uint64_t random(uint64_t below) { return draw(own_, below); }

    void run() {
        if (!(windows_ = allocate(nullptr, window_bytes))) report("thread %u: no memory", number_);
        for (uint32_t i = 0; i < slots && !shared.failed; ++i) {
            if (!(slot_[i].at = allocate(nullptr, slot_bytes))) report("thread %u: no memory", number_);
            else fill(slot_[i]);
            shared.slot[number_][i] = slot_[i].at;
        }
        if (!shared.failed) meet();
        if (!shared.failed) connect();
        for (round_ = 0; round_ < stress_.rounds && !shared.failed; ++round_) {
            slot_now_ = &slot_[planned(slots)];
            target_ = planned(2) == (stress_.client ? 1 : 0);
            const bool flag = planned(2);
            switch (planned(8)) {
            case 0: move(true); break;
            case 1: move(false); break;
            case 2: use_after_withdrawal(flag); break;
            case 3: use_after_free(flag); break;
            case 4: use_while_protected(); break;
            case 5:
            case 6: free_target_in_flight(); break;
            default: free_source_in_flight();
            }
            if (shared.failed) break;
            look_at(*slot_now_);
            for (int i = 0; i < 2 && !shared.failed; ++i) {
                Slot &any = slot_[random(slots)];
                switch (random(4)) {
                case 0: register_windows(); break;
                case 1: replace(any); break;
                default: register_what_others_have();
                }
            }
        }
        for (Slot &slot : slot_)
            if (!shared.failed) look_at(slot);
        if (!shared.failed) tell({}); // so that neither closes while the other one is at it
        data_.close();
        channel_.socket.close();
        listener_.close();
        for (uint32_t i = 0; i < slots; ++i) {
            shared.slot[number_][i] = nullptr;
            if (slot_[i].at) free(slot_[i].at);
        }
        if (windows_) free(windows_);
    }

    // --- the partner
    void meet() {
        const uint16_t port = static_cast<uint16_t>(stress_.port + number_);
        if (stress_.client) {
            error_ = santools::connect_patiently(channel_.socket, stress_.own_ip, stress_.peer_ip, port, patience_ms);
        } else {
            error_ = listener_.open();
            if (!error_) error_ = listener_.bind(0, port);
            if (!error_) error_ = listener_.listen(4);
            if (!error_) error_ = listener_.accept(channel_.socket, patience_ms);
        }
        if (!error_) error_ = channel_.start(2 * patience_ms);
        MUST(!error_);
    }
    // Both tell, then both hear.
    Note tell(const Note &note) {
        Note heard = {};
        error_ = channel_.tell(&note, sizeof note);
        if (!error_) error_ = channel_.hear(&heard, sizeof heard);
        if (error_) report("thread %u, round %u: the partner does not answer (error %d)", number_, round_, error_);
        return heard;
    }
    void connect() {
        data_.close();
        if (stress_.client) {
            error_ = data_.open();
            if (!error_) error_ = data_.bind(stress_.own_ip, santools::any_port());
            if (!error_) error_ = data_.connect(stress_.peer_ip, static_cast<uint16_t>(stress_.port + number_), patience_ms);
        } else {
            error_ = listener_.accept(data_, patience_ms);
        }
        MUST(!error_);
        ++connections;
    }

    // --- memory
    static unsigned char *allocate(unsigned char *at, size_t bytes) {
        return static_cast<unsigned char *>(VirtualAlloc(at, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE));
    }
    // The system asks the cache and tries once more. In between another thread may have registered it again: then so do we.
    template <typename Change> static bool insist(Change change) {
        for (int i = 0; i < 10000; ++i)
            if (change()) return true;
        return false;
    }
    static bool free(unsigned char *at) {
        return insist([at] { return VirtualFree(at, 0, MEM_RELEASE); });
    }
    void fill(Slot &slot) {
        slot.content = ++content_ << 8 | number_;
        auto *words = reinterpret_cast<volatile uint64_t *>(slot.at);
        for (uint32_t i = 0; i < slot_bytes / 8; ++i) words[i] = word(slot.content, i);
    }
    static uint64_t word(uint64_t content, uint32_t i) { return content * 0x100000001B3ull ^ (uint64_t{i} << 40 | i); }
    static bool holds(const Slot &slot, uint64_t content) {
        auto *words = reinterpret_cast<volatile uint64_t *>(slot.at);
        for (uint32_t i = 0; i < slot_bytes / 8; ++i)
            if (words[i] != word(content, i)) return false;
        return true;
    }
    void look_at(const Slot &slot) {
        if (!shared.failed) MUST(holds(slot, slot.content));
    }
    // Other pages at the same address, with other contents. Released and allocated, or taken out and put back.
    void replace(Slot &slot) {
        if (random(2)) {
            MUST(insist([&] { return VirtualFree(slot.at, slot_bytes, MEM_DECOMMIT); }));
            MUST(VirtualAlloc(slot.at, slot_bytes, MEM_COMMIT, PAGE_READWRITE) == slot.at);
        } else {
            MUST(free(slot.at));
            unsigned char *again = allocate(slot.at, slot_bytes);
            if (!again) again = allocate(nullptr, slot_bytes); // somebody else got the address
            MUST(again);
            slot.at = again;
            for (uint32_t i = 0; i < slots; ++i) shared.slot[number_][i] = slot_[i].at;
        }
        fill(slot);
        ++reused;
    }

    // --- what it does
    // By RDMA into the target's slot, or out of it.
    void move(bool write) {
        Slot &slot = *slot_now_;
        Note note = {};
        note.content = slot.content;
        if (target_) {
            MUST(!(error_ = data_.expose(slot.at, slot_bytes, write ? MEM_WRITE : MEM_READ, note.buffer)));
            tell(note);
            if (shared.failed) return;
            const Note moved = tell({});
            MUST(!moved.error);
            if (write) slot.content = moved.content;
            MUST(!(error_ = data_.withdraw(note.buffer)));
        } else {
            HANDLE h;
            MUST(!(error_ = data_.register_memory(slot.at, slot_bytes, MEM_READWRITE, h)));
            const Note there = tell({});
            if (shared.failed) return;
            const Piece piece = {slot.at, slot_bytes, h};
            note.error = write ? write_now(data_, piece, there.buffer, 0) : read_now(data_, piece, there.buffer, 0);
            tell(note);
            MUST(!(error_ = note.error));
            if (!write) slot.content = there.content;
            MUST(!(error_ = data_.deregister_memory(h)));
        }
        ++transfers;
    }
    // More ranges than the cache may keep.
    void register_windows() {
        for (uint32_t i = 0; i < windows_at_a_time; ++i) {
            const uint64_t offset = random(window_bytes - 8192);
            HANDLE h;
            MUST(!(error_ = data_.register_memory(windows_ + offset, 1 + random(8192), random(2) ? MEM_READ : MEM_READWRITE, h)));
            MUST(!(error_ = data_.deregister_memory(h)));
        }
        windows += windows_at_a_time;
    }
    // Some of which is being freed or protected at this moment: a bad address, or, where the memory was gone when the driver wanted to
    // secure it and back when it asked why, something that passes for a lack of resources.
    static bool expected(int error) { return !error || error == WSAEFAULT || error == WSAENOBUFS; }
    void register_what_others_have() {
        for (int i = 0; i < 20; ++i) {
            unsigned char *at = shared.slot[random(threads)][random(slots)];
            if (!at) continue;
            const uint64_t pages = 1 + random(slot_pages), first = random(slot_pages - pages + 1);
            HANDLE h;
            if (random(3) == 0) {
                RemoteBuffer r;
                error_ = data_.expose(at + first * 4096, pages * 4096, MEM_READ, r);
                MUST(expected(error_));
                if (!error_) MUST(!(error_ = data_.withdraw(r)));
                continue;
            }
            error_ = data_.register_memory(at + first * 4096, pages * 4096, random(2) ? MEM_READ : MEM_READWRITE, h);
            MUST(expected(error_));
            if (!error_) MUST(!(error_ = data_.deregister_memory(h)));
        }
    }
    // The target has a key that must not work any more, which `expose` brings about. The other one tries it, and that ends the
    // connection.
    template <typename Expose> void stale(bool write, Expose expose) {
        if (target_) {
            Note note = {};
            expose(note.buffer);
            if (shared.failed) return;
            tell(note);
            if (!shared.failed) tell({}); // tried
        } else {
            HANDLE h;
            Slot &slot = *slot_now_;
            const Note there = tell({});
            if (shared.failed) return;
            MUST(!(error_ = data_.register_memory(slot.at, slot_bytes, MEM_READWRITE, h)));
            const Piece piece = {slot.at, slot_bytes, h};
            error_ = write ? write_now(data_, piece, there.buffer, 0) : read_now(data_, piece, there.buffer, 0);
            MUST(error_ == WSAECONNABORTED);
            ++refused;
            tell({});
            MUST(!(error_ = data_.deregister_memory(h)));
        }
    }
    void use_after_withdrawal(bool write) {
        RemoteBuffer again = {};
        stale(write, [&](RemoteBuffer &first) {
            Slot &slot = *slot_now_;
            MUST(!(error_ = data_.expose(slot.at, slot_bytes, MEM_READWRITE, first)));
            RemoteBuffer gone = first;
            MUST(!(error_ = data_.withdraw(gone)));
            // Or exposed again, so that the memory can be reached, but under another key.
            if (random(2)) MUST(!(error_ = data_.expose(slot.at, slot_bytes, MEM_READWRITE, again)));
        });
        if (again.length && !shared.failed) MUST(!(error_ = data_.withdraw(again)));
        if (!shared.failed) connect();
    }
    // The memory is freed while it is exposed, and its address used again.
    void use_after_free(bool write) {
        RemoteBuffer dead = {};
        stale(write, [&](RemoteBuffer &exposed) {
            MUST(!(error_ = data_.expose(slot_now_->at, slot_bytes, MEM_READWRITE, exposed)));
            dead = exposed;
            replace(*slot_now_);
        });
        if (target_ && !shared.failed) {
            look_at(*slot_now_);
            MUST(!(error_ = data_.withdraw(dead))); // still to be given back
        }
        if (!shared.failed) connect();
    }
    void use_while_protected() {
        HANDLE h = nullptr, other;
        RemoteBuffer dead = {};
        DWORD old;
        Slot &slot = *slot_now_;
        stale(true, [&](RemoteBuffer &exposed) {
            MUST(!(error_ = data_.register_memory(slot.at, slot_bytes, MEM_READWRITE, h)));
            MUST(!(error_ = data_.expose(slot.at, slot_bytes, MEM_WRITE, exposed)));
            dead = exposed;
            MUST(insist([&] { return VirtualProtect(slot.at, slot_bytes, PAGE_READONLY, &old); }));
            MUST((error_ = data_.register_memory(slot.at, slot_bytes, MEM_READWRITE, other)) == WSAEFAULT);
            const Piece piece = {slot.at, slot_bytes, h};
            Operation op;
            op.prepare(false);
            MUST((error_ = data_.recv(op, &piece, 1)) == WSAEFAULT); // the handle has died
        });
        if (target_ && !shared.failed) {
            look_at(slot);
            MUST(VirtualProtect(slot.at, slot_bytes, PAGE_READWRITE, &old));
            MUST(!(error_ = data_.withdraw(dead)));
            MUST(!(error_ = data_.deregister_memory(h)));
            ++protections;
        }
        if (!shared.failed) connect();
    }
    // When VirtualFree has returned, nothing arrives any more, whatever was under way.
    void free_target_in_flight() {
        Note note = {};
        if (target_) {
            MUST(!(error_ = data_.expose(slot_now_->at, slot_bytes, MEM_WRITE, note.buffer)));
            tell(note);
            if (shared.failed) return;
            for (uint64_t n = random(6); n > 0; --n) Sleep(0);
            replace(*slot_now_);
            if (shared.failed) return;
            const Note end = tell({});
            look_at(*slot_now_);
            if (shared.failed) return;
            MUST(!(error_ = data_.withdraw(note.buffer)));
            if (end.error) connect();
        } else {
            write_and(note, [] {});
        }
    }
    // What arrives is what was there before; nothing of what the address is used for afterwards.
    void free_source_in_flight() {
        Slot &slot = *slot_now_;
        Note note = {};
        if (target_) {
            const uint64_t before = slot.content;
            MUST(!(error_ = data_.expose(slot.at, slot_bytes, MEM_WRITE, note.buffer)));
            tell(note);
            if (shared.failed) return;
            const Note end = tell({});
            if (shared.failed) return;
            MUST(!(error_ = data_.withdraw(note.buffer)));
            auto *words = reinterpret_cast<volatile uint64_t *>(slot.at);
            for (uint32_t i = 0; i < slot_bytes / 8; ++i) MUST(words[i] == word(end.content, i) || words[i] == word(before, i));
            if (!end.error) MUST(holds(slot, end.content));
            fill(slot);
            if (end.error) connect();
        } else {
            note.content = slot.content;
            write_and(note, [&] {
                for (uint64_t n = random(6); n > 0; --n) Sleep(0);
                replace(slot);
            });
        }
    }
    // Posts writes of the slot, does something, and tells how they ended: well, or with the connection.
    template <typename Meanwhile> void write_and(Note &note, Meanwhile meanwhile) {
        HANDLE h;
        MUST(!(error_ = data_.register_memory(slot_now_->at, slot_bytes, MEM_READ, h)));
        const Note there = tell({});
        if (shared.failed) return;
        const Piece piece = {slot_now_->at, slot_bytes, h};
        Operation ops[in_flight];
        uint32_t posted = 0;
        for (Operation &op : ops) {
            op.prepare(false);
            note.error = data_.write(op, &piece, 1, there.buffer, 0); // the other side may be at it already
            if (note.error) break;
            ++posted;
        }
        meanwhile();
        for (uint32_t i = 0; i < posted; ++i) {
            DWORD bytes;
            const int error = data_.wait(ops[i], bytes, patience_ms);
            if (!note.error) note.error = error;
        }
        if (shared.failed) return;
        error_ = note.error;
        MUST(!error_ || error_ == WSAECONNABORTED || error_ == WSAECONNRESET || error_ == WSAEFAULT);
        note.error ? ++cut_short : ++transfers;
        tell(note);
        if (shared.failed) return;
        MUST(!(error_ = data_.deregister_memory(h)));
        if (note.error) connect();
    }

    HANDLE thread_ = nullptr;
    uint32_t number_ = 0, round_ = 0;
    Stress stress_ = {};
    uint64_t plan_ = 0, own_ = 0, content_ = 0;
    int error_ = 0;
    Socket listener_, data_;
    santools::Channel channel_;
    unsigned char *windows_ = nullptr;
    Slot slot_[slots];
    // Of this round
    Slot *slot_now_ = nullptr;
    bool target_ = false; // or the one who acts
};

} // namespace

int run_stress(const Stress &stress) {
    static Worker workers[threads];
    for (uint32_t i = 0; i < threads; ++i) workers[i].start(i, stress);
    for (Worker &w : workers) w.end();
    uint32_t transfers = 0, refused = 0, cut_short = 0, reused = 0, protections = 0, windows = 0, connections = 0;
    for (const Worker &w : workers) {
        transfers += w.transfers;
        refused += w.refused;
        cut_short += w.cut_short;
        reused += w.reused;
        protections += w.protections;
        windows += w.windows;
        connections += w.connections;
    }
    printf("stress: %u threads, %u rounds each, seed %u: %u transfers, %u cut short, %u uses of stale keys refused, %u ranges used "
           "again, %u protected, %u windows registered, %u connections, %ld callbacks\n",
           threads, stress.rounds, stress.seed, transfers, cut_short, refused, reused, protections, windows, connections,
           sanswitch::counters().cache_callbacks);
    if (shared.failed)
        printf("stress: FAILED: %s\nstress: once more: santest --stress=%u --seed=%u\n", shared.text, stress.rounds, stress.seed);
    else printf("stress: passed\n");
    return shared.failed ? 1 : 0;
}

} // namespace santest
