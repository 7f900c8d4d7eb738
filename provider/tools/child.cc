// SPDX-License-Identifier: GPL-2.0-or-later
//
// child.cc: another process of this machine for checks that take two: santest.exe starts itself with --child=NAME. Two events
// of that name say whose turn it is, a small file carries what is said.
#include "conformance.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace santest {

namespace {

constexpr uint32_t child_patience_ms = 30000;

// NAME-go, NAME-done: one direction each.
HANDLE named_event(const char *name, const char *which) {
    char full[96];
    snprintf(full, sizeof full, "%s-%s", name, which);
    return CreateEventA(nullptr, FALSE, FALSE, full);
}

void file_name(const char *name, char *out, size_t size) {
    const char *folder = getenv("TEMP");
    snprintf(out, size, "%s/%s.tmp", folder && *folder ? folder : ".", name);
}

bool put(const char *name, const Child::Message &m) {
    char path[300];
    file_name(name, path, sizeof path);
    FILE *f = fopen(path, "wb");
    if (!f) return false;
    const bool ok = fwrite(&m, sizeof m, 1, f) == 1;
    return fclose(f) == 0 && ok;
}

bool get(const char *name, Child::Message &m) {
    char path[300];
    file_name(name, path, sizeof path);
    FILE *f = fopen(path, "rb");
    if (!f) return false;
    const bool ok = fread(&m, sizeof m, 1, f) == 1;
    fclose(f);
    return ok;
}

void name_of(DWORD parent, DWORD serial, char *out, size_t size) {
    snprintf(out, size, "santest-%lu-%lu", parent, serial);
}

// What the child has: one socket, and what it has accepted.
struct Held {
    Socket socket, accepted;
    Socket &current() { return accepted.handle() != INVALID_SOCKET ? accepted : socket; }
};

int transfer(Socket &s, bool send, uint32_t seed) {
    Memory m;
    int error = m.make(s, 4096);
    if (error) return error;
    DWORD bytes = 0;
    if (send) {
        for (uint32_t i = 0; i < 1000; ++i) m.data()[i] = static_cast<unsigned char>(i + seed);
        error = send_now(s, m.piece(0, 1000));
    } else {
        error = recv_now(s, m.piece(0, 4096), bytes);
        if (!error && bytes != 1000) error = -1;
        for (uint32_t i = 0; i < 1000 && !error; ++i)
            if (m.data()[i] != static_cast<unsigned char>(i + seed)) error = -2;
    }
    const int released = s.deregister_memory(m.handle);
    return error ? error : released;
}

// The last WSPCleanup, with a receive pending. 0, or which step was wrong.
int clean_up(Socket &s) {
    Memory m;
    if (m.make(s, 4096)) return 1;
    Operation op;
    op.prepare(false);
    const Piece piece = m.piece(0, 64);
    if (s.recv(op, &piece, 1)) return 2;
    int error = 0;
    if (sanswitch::procs().lpWSPCleanup(&error) != 0) return 3;
    if (!op.finished() || op.overlapped.OffsetHigh != WSA_OPERATION_ABORTED) return 4;
    if (sanswitch::procs().lpWSPCleanup(&error) != SOCKET_ERROR || error != WSANOTINITIALISED) return 5;
    const LONG asked = sanswitch::counters().cache_callbacks;
    m.buffer.free();
    if (sanswitch::counters().cache_callbacks != asked) return 6; // still secured
    error = 0;
    if (sanswitch::procs().lpWSPSocket(AF_INET, SOCK_STREAM, IPPROTO_TCP, nullptr, 0, WSA_FLAG_OVERLAPPED, &error) !=
            INVALID_SOCKET ||
        error != WSANOTINITIALISED)
        return 7;
    return 0;
}

void serve(Held &held, Child::Message &m) {
    const LONG created = sanswitch::counters().handles_created;
    DWORD token = m.token;
    int error = 0;
    switch (m.verb) {
    case Child::take: error = held.socket.take(token, false); break;
    case Child::take_listener: error = held.socket.take(token, true); break;
    case Child::duplicate: error = held.current().duplicate(m.process, token); break;
    case Child::send: error = transfer(held.current(), true, m.value); break;
    case Child::receive: error = transfer(held.current(), false, m.value); break;
    case Child::accept: error = held.socket.accept(held.accepted, patience_ms); break;
    case Child::connect:
        error = held.socket.open();
        if (!error) error = held.socket.bind(0, santools::any_port());
        if (!error) error = held.socket.connect(m.ip, static_cast<uint16_t>(m.port), patience_ms);
        break;
    case Child::cleanup: error = clean_up(held.current()); break;
    default: break;
    }
    m.error = static_cast<uint32_t>(error);
    m.token = token;
    m.created = static_cast<uint32_t>(sanswitch::counters().handles_created - created);
}

} // namespace

int run_child(const char *name) {
    HANDLE go = named_event(name, "go"), done = named_event(name, "done");
    if (!go || !done) return 1;
    Held held;
    for (;;) {
        Child::Message m;
        if (WaitForSingleObject(go, child_patience_ms) != WAIT_OBJECT_0 || !get(name, m)) return 1;
        if (m.verb == Child::die) TerminateProcess(GetCurrentProcess(), 42);
        const bool last = m.verb == Child::exit_process;
        if (last) {
            held.accepted.close();
            held.socket.close();
        } else {
            serve(held, m);
        }
        if (!put(name, m)) return 1;
        SetEvent(done);
        if (last) break;
    }
    CloseHandle(go);
    CloseHandle(done);
    return 0;
}

bool Child::start() {
    static volatile LONG serial;
    char name[64], path[300], line[400];
    value_ = static_cast<DWORD>(InterlockedIncrement(&serial));
    name_of(GetCurrentProcessId(), value_, name, sizeof name);
    go_ = named_event(name, "go");
    done_ = named_event(name, "done");
    if (!go_ || !done_ || !GetModuleFileNameA(nullptr, path, sizeof path)) return false;
    snprintf(line, sizeof line, "\"%s\" --child=%s", path, name);
    STARTUPINFOA info = {};
    info.cb = sizeof info;
    return CreateProcessA(path, line, nullptr, nullptr, FALSE, 0, nullptr, nullptr, &info, &process_);
}

bool Child::ask(Message &message, uint32_t timeout_ms) {
    char name[64];
    name_of(GetCurrentProcessId(), value_, name, sizeof name);
    if (!process_.hProcess || !put(name, message)) return false;
    SetEvent(go_);
    if (message.verb == die) return ended();
    HANDLE either[] = {done_, process_.hProcess}; // a child that has ended does not answer
    if (WaitForMultipleObjects(2, either, FALSE, timeout_ms + patience_ms) != WAIT_OBJECT_0) return false;
    return get(name, message);
}

bool Child::ended() {
    if (!process_.hProcess || WaitForSingleObject(process_.hProcess, patience_ms) != WAIT_OBJECT_0) return false;
    CloseHandle(process_.hProcess);
    CloseHandle(process_.hThread);
    process_.hProcess = nullptr;
    return true;
}

Child::~Child() {
    Message m = {};
    m.verb = exit_process;
    if (process_.hProcess && (!ask(m) || !ended())) {
        TerminateProcess(process_.hProcess, 1);
        CloseHandle(process_.hProcess);
        CloseHandle(process_.hThread);
    }
    char name[64], path[300];
    name_of(GetCurrentProcessId(), value_, name, sizeof name);
    file_name(name, path, sizeof path);
    DeleteFileA(path);
    if (go_) CloseHandle(go_);
    if (done_) CloseHandle(done_);
}

} // namespace santest
