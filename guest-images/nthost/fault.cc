// SPDX-License-Identifier: GPL-2.0-or-later
#include "fault.h"

#include <cpuid.h>
#include <execinfo.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "cpu.h"
#include "exception.h"
#include "imports.h"
#include "mmio.h"
#include "pe_image.h"
#include "process.h"
#include "stack_trace.h"
#include "thread.h"
#include "unwind.h"
#include "user_access.h"
#include "verifier.h"

extern "C" {
extern const char nth_safe_copy_begin[], nth_safe_copy_end[], nth_safe_copy_fault[];
extern const char nth_leaf_begin[], nth_leaf_end[], nth_rep_begin[], nth_rep_end[];
int nth_safe_copy(void *to, const void *from, size_t size);
void nth_close_access();
uint32_t nth_pkru_denied;             // what drivers run with
uint64_t nth_rep_min = ~uint64_t{0};  // from this size on copies use rep movsb
}

namespace nth {

using namespace nt;

bool g_user_access_watched;

namespace {

unsigned g_pkru_offset;

// ucontext order of NT's register numbers
constexpr int kGreg[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                           REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

bool within(uint64_t a, const char *begin, const char *end) {
    return a >= reinterpret_cast<uint64_t>(begin) && a < reinterpret_cast<uint64_t>(end);
}

struct Delivery {
    EXCEPTION_RECORD record;
    CONTEXT context;
};

// Runs on the faulting stack, outside the signal handler.
[[noreturn]] void deliver(Delivery *d) {
    Thread *t = current();
    if (t->in_kernel() && t->irql >= DISPATCH_LEVEL && d->record.ExceptionCode == STATUS_ACCESS_VIOLATION) {
        set_stack_context(&d->context);
        bugcheck(0xd1, "DRIVER_IRQL_NOT_LESS_OR_EQUAL", "%s touched address 0x%llx at IRQL %u",
                 describe_address(d->context.Rip).c_str(), (unsigned long long)d->record.ExceptionInformation[1],
                 t->irql);
    }
    dispatch_exception(&d->record, &d->context);
}

[[noreturn]] void deliver_at_caller(Delivery *d) {
    CONTEXT c;
    context_of_caller(current(), &c);
    d->context = c;
    dispatch_exception(&d->record, &d->context);
}

void fill_record(EXCEPTION_RECORD *r, int signal, const mcontext_t &m, const siginfo_t *info) {
    *r = EXCEPTION_RECORD{};
    r->ExceptionAddress = reinterpret_cast<void *>(m.gregs[REG_RIP]);
    switch (signal) {
        case SIGILL: r->ExceptionCode = STATUS_ILLEGAL_INSTRUCTION; return;
        case SIGTRAP: r->ExceptionCode = m.gregs[REG_TRAPNO] == 1 ? STATUS_SINGLE_STEP : STATUS_BREAKPOINT; return;
        case SIGFPE: r->ExceptionCode = STATUS_INTEGER_DIVIDE_BY_ZERO; return;
        default: break;
    }
    r->ExceptionCode = STATUS_ACCESS_VIOLATION;
    r->NumberParameters = 2;
    if (m.gregs[REG_TRAPNO] == 14) {
        r->ExceptionInformation[0] = (m.gregs[REG_ERR] & 16) ? 8 : (m.gregs[REG_ERR] & 2) ? 1 : 0;
        r->ExceptionInformation[1] = reinterpret_cast<uint64_t>(info->si_addr);
    } else {  // general protection: non-canonical address, or a privileged instruction
        r->ExceptionInformation[1] = ~uint64_t{0};
    }
}

void fill_context(CONTEXT *c, const mcontext_t &m) {
    *c = CONTEXT{};
    c->ContextFlags = CONTEXT_FULL_FLAGS;
    for (int i = 0; i < 16; i++) c->Reg[i] = static_cast<uint64_t>(m.gregs[kGreg[i]]);
    c->Rip = static_cast<uint64_t>(m.gregs[REG_RIP]);
    c->EFlags = static_cast<ULONG>(m.gregs[REG_EFL]);
    c->SegCs = 0x33;
    c->SegSs = 0x2b;
    c->MxCsr = m.fpregs->mxcsr;
    memcpy(c->Xmm, m.fpregs->_xmm, sizeof c->Xmm);
}

[[noreturn]] void host_crash(int signal, const siginfo_t *info, const mcontext_t &m) {
    char line[200];
    int n = snprintf(line, sizeof line, "nthost: host error: signal %d at 0x%llx, address %p, error 0x%llx\n", signal,
                     (unsigned long long)m.gregs[REG_RIP], info->si_addr, (unsigned long long)m.gregs[REG_ERR]);
    if (write(2, line, n) < 0) _exit(EXIT_HOST_BUG);
    void *frames[40];
    backtrace_symbols_fd(frames, backtrace(frames, 40), 2);
    if (t_thread != nullptr) print_current_stack();
    _exit(EXIT_HOST_BUG);
}

bool emulate_device(const MmioRange &r, mcontext_t &m, uint64_t address) {
    CpuState cpu;
    for (int i = 0; i < 16; i++) cpu.reg[i] = static_cast<uint64_t>(m.gregs[kGreg[i]]);
    cpu.rip = static_cast<uint64_t>(m.gregs[REG_RIP]);
    cpu.eflags = static_cast<uint64_t>(m.gregs[REG_EFL]);
    cpu.xmm = reinterpret_cast<M128 *>(m.fpregs->_xmm);
    if (!emulate_access(reinterpret_cast<const uint8_t *>(cpu.rip), cpu, address, r.address - r.port_offset, *r.port))
        return false;
    for (int i = 0; i < 16; i++) m.gregs[kGreg[i]] = static_cast<greg_t>(cpu.reg[i]);
    m.gregs[REG_RIP] = static_cast<greg_t>(cpu.rip);
    m.gregs[REG_EFL] = static_cast<greg_t>(cpu.eflags);
    return true;
}

bool emulate_irql(mcontext_t &m) {
    CpuState cpu{};
    for (int i = 0; i < 16; i++) cpu.reg[i] = static_cast<uint64_t>(m.gregs[kGreg[i]]);
    cpu.rip = static_cast<uint64_t>(m.gregs[REG_RIP]);
    bool ok = emulate_cr8(
        reinterpret_cast<const uint8_t *>(cpu.rip), cpu, []() -> uint64_t { return current()->irql; },
        [](uint64_t v) { current()->irql = static_cast<KIRQL>(v & 15); });
    if (!ok) return false;
    for (int i = 0; i < 16; i++) m.gregs[kGreg[i]] = static_cast<greg_t>(cpu.reg[i]);
    m.gregs[REG_RIP] = static_cast<greg_t>(cpu.rip);
    return true;
}

uint32_t *saved_pkru(ucontext_t *uc) {
    return reinterpret_cast<uint32_t *>(reinterpret_cast<uint8_t *>(uc->uc_mcontext.fpregs) + g_pkru_offset);
}

enum class Touch { LetThrough, Inject, Forbidden };

// The driver (or nthost for it) touched user memory that is closed while it runs. When the driver is prepared for a
// fault it is let through, or made to fault (--fail access): an instruction of its own is single-stepped, and the trap
// closes user memory again; a leaf import is opened until it returns, by way of nth_close_access.
Touch judge_user_touch(ucontext_t *uc, bool pe, bool leaf) {
    mcontext_t &m = uc->uc_mcontext;
    Thread *t = current();
    if (pe || leaf) {
        CONTEXT c;
        fill_context(&c, m);
        if (leaf) {
            memcpy(&c.Rip, reinterpret_cast<void *>(c.Reg[RSP]), 8);
            c.Reg[RSP] += 8;
        }
        if (t->irql >= DISPATCH_LEVEL || !inside_try(t, &c)) return Touch::Forbidden;
        if (should_fail(Fail::Access)) return Touch::Inject;
    }
    *saved_pkru(uc) = 0;
    if (!leaf) {
        m.gregs[REG_EFL] |= 0x100;
        return Touch::LetThrough;
    }
    auto *return_address = reinterpret_cast<uint64_t *>(m.gregs[REG_RSP]);
    t->gs->at(GS_LEAF_RETURN) = *return_address;
    *return_address = reinterpret_cast<uint64_t>(&nth_close_access);
    return Touch::LetThrough;
}

void on_fault(int signal, siginfo_t *info, void *context) {
    if (g_user_access_watched) write_pkru(0);
    auto *uc = static_cast<ucontext_t *>(context);
    mcontext_t &m = uc->uc_mcontext;
    uint64_t rip = static_cast<uint64_t>(m.gregs[REG_RIP]);
    uint64_t address = reinterpret_cast<uint64_t>(info->si_addr);
    Thread *t = t_thread;
    bool page_fault = signal == SIGSEGV && m.gregs[REG_TRAPNO] == 14;

    if (page_fault) {
        if (const MmioRange *r = find_mmio_range(address))
            if (rip != address && emulate_device(*r, m, address)) return;
    }
    bool leaf = within(rip, nth_leaf_begin, nth_leaf_end);
    bool pe =
        image_of(rip) != nullptr || (page_fault && rip == address && t != nullptr && !leaf && is_user_address(rip));
    bool inject = false;
    if (g_user_access_watched && t != nullptr) {
        // Opened for a leaf import that faults all the same: its caller is where it was.
        if (auto *at = reinterpret_cast<uint64_t *>(m.gregs[REG_RSP]);
            leaf && *at == reinterpret_cast<uint64_t>(&nth_close_access))
            *at = t->gs->at(GS_LEAF_RETURN);
        if (page_fault && info->si_code == SEGV_PKUERR && t->in_kernel()) {
            Touch touch = judge_user_touch(uc, pe, leaf);
            if (touch == Touch::LetThrough) return;
            inject = touch == Touch::Inject;
        }
        if (page_fault && info->si_code == SEGV_PKUERR && t->in_kernel() && !inject) {
            static thread_local CONTEXT touched;
            fill_context(&touched, m);
            if (leaf) {
                memcpy(&touched.Rip, reinterpret_cast<void *>(touched.Reg[RSP]), 8);
                touched.Reg[RSP] += 8;
            }
            set_stack_context(&touched);
            if (t->irql >= DISPATCH_LEVEL)
                bugcheck(0xd1, "DRIVER_IRQL_NOT_LESS_OR_EQUAL", "user memory at 0x%llx touched at IRQL %u, at %s",
                         (unsigned long long)address, t->irql, describe_address(touched.Rip).c_str());
            bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "user memory at 0x%llx touched outside __try, at %s",
                     (unsigned long long)address, describe_address(touched.Rip).c_str());
        }
        if (signal == SIGTRAP && m.gregs[REG_TRAPNO] == 1 && t->in_kernel()) {
            *saved_pkru(uc) = nth_pkru_denied;
            m.gregs[REG_EFL] &= ~0x100;
            return;
        }
    }
    if (within(rip, nth_safe_copy_begin, nth_safe_copy_end)) {
        m.gregs[REG_RIP] = reinterpret_cast<greg_t>(nth_safe_copy_fault);
        return;
    }
    if (t == nullptr || t->gs == nullptr) host_crash(signal, info, m);
    if (signal == SIGSEGV && !page_fault && t->in_kernel() && image_of(rip) != nullptr && emulate_irql(m)) return;

    void (*entry)(Delivery *) = deliver;
    if (!pe && !leaf) {
        // In nthost itself: the caller's fault only where the import works on memory that the caller names.
        const CallRecord *r = t->record_top() - 1;
        auto *slot = static_cast<const ImportSlot *>(r->slot);
        bool callers = r->rsp != ~uint64_t{0} && r->rsp > static_cast<uint64_t>(m.gregs[REG_RSP]) && slot != nullptr &&
                       (strcmp(slot->module, "msvcrt.dll") == 0 || strncmp(slot->name, "Rtl", 3) == 0);
        if (!callers) host_crash(signal, info, m);
        entry = deliver_at_caller;
    }
    uint64_t sp = (static_cast<uint64_t>(m.gregs[REG_RSP]) - 256 - sizeof(Delivery)) & ~uint64_t{63};
    auto *d = reinterpret_cast<Delivery *>(sp);
    fill_record(&d->record, signal, m, info);
    fill_context(&d->context, m);
    if (leaf) {
        if (within(rip, nth_rep_begin, nth_rep_end)) {
            d->context.Reg[RDI] = d->context.Reg[R10];
            d->context.Reg[RSI] = d->context.Reg[R11];
        }
        memcpy(&d->context.Rip, reinterpret_cast<void *>(d->context.Reg[RSP]), 8);
        d->context.Reg[RSP] += 8;
        d->record.ExceptionAddress = reinterpret_cast<void *>(d->context.Rip);
    } else if (pe && image_of(rip) == nullptr) {
        // A call through a bad pointer: the return address is on the stack.
        memcpy(&d->context.Rip, reinterpret_cast<void *>(d->context.Reg[RSP]), 8);
        d->context.Reg[RSP] += 8;
    }
    m.gregs[REG_RDI] = static_cast<greg_t>(sp);
    m.gregs[REG_RSP] = static_cast<greg_t>(sp - 8);  // as after a call
    m.gregs[REG_RIP] = reinterpret_cast<greg_t>(entry);
    m.gregs[REG_EFL] &= ~(0x400 | 0x100);
    if (g_user_access_watched) *saved_pkru(uc) = t->in_kernel() ? nth_pkru_denied : 0;
}

// abort() in nthost or its libraries: say where.
void on_abort(int signal, siginfo_t *info, void *context) {
    host_crash(signal, info, static_cast<ucontext_t *>(context)->uc_mcontext);
}

[[noreturn]] void leave_thread() {
    exit_current_thread(current()->exit_code);
}

// Somebody wants this thread to end or to pause. Only PE code in user mode is interrupted; elsewhere the flags are
// looked at when the thread gets back there (the sender repeats the signal).
void on_nudge(int, siginfo_t *, void *context) {
    if (g_user_access_watched) write_pkru(0);
    auto *uc = static_cast<ucontext_t *>(context);
    mcontext_t &m = uc->uc_mcontext;
    Thread *t = t_thread;
    if (t == nullptr || t->in_kernel() || t->exiting) return;
    if (image_of(static_cast<uint64_t>(m.gregs[REG_RIP])) == nullptr) return;
    while (t->suspend_count > 0 && !t->terminate) futex_wait(&t->resume_word, 0);
    if (!t->terminate) return;
    m.gregs[REG_RSP] = static_cast<greg_t>(((static_cast<uint64_t>(m.gregs[REG_RSP]) - 256) & ~uint64_t{15}) - 8);
    m.gregs[REG_RIP] = reinterpret_cast<greg_t>(leave_thread);
    m.gregs[REG_EFL] &= ~0x400;
}

// KI_USER_SHARED_DATA, where NT's headers read the time from. Linux lets nothing be mapped there; the loads trap.
struct SharedData final : MmioPort {
    uint64_t read(uint64_t offset, unsigned size) override {
        uint8_t page[0x400] = {};
        auto put_time = [&](unsigned at, uint64_t v) {  // KSYSTEM_TIME: low, high, high again
            auto high = static_cast<uint32_t>(v >> 32);
            memcpy(page + at, &v, 8);
            memcpy(page + at + 8, &high, 4);
        };
        uint64_t ns = monotonic_ns();
        uint32_t multiplier = 15625 << 10;  // 15.625 ms a tick, in 2^-24 ms
        uint32_t version[2] = {5, 2};
        memcpy(page + 4, &multiplier, 4);
        put_time(0x08, ns / 100);
        put_time(0x14, system_time());
        put_time(0x320, ns / 15625000);
        memcpy(page + 0x26c, version, sizeof version);
        uint64_t v = 0;
        if (offset + size <= sizeof page) memcpy(&v, page + offset, size);
        return v;
    }
    void write(uint64_t, uint64_t, unsigned) override {}
};
SharedData g_shared_data;

}  // namespace

// From nth_record_stub: a thread that is to end makes an import call. It holds nothing of nthost's at that point.
extern "C" [[noreturn]] void nth_leave_thread() {
    leave_thread();
}

void install_fault_handlers() {
    add_mmio_range(0xfffff78000000000, 4096, &g_shared_data, 0);
    struct sigaction sa {};
    sa.sa_sigaction = on_fault;
    sa.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int s : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP}) sigaction(s, &sa, nullptr);
    sa.sa_sigaction = on_abort;
    sigaction(SIGABRT, &sa, nullptr);
    sa.sa_sigaction = on_nudge;
    sa.sa_flags = SA_SIGINFO | SA_ONSTACK;  // sleeps are to be disturbed: no SA_RESTART
    sigaction(NUDGE_SIGNAL, &sa, nullptr);
    signal(SIGPIPE, SIG_IGN);
    void *warm[2];
    backtrace(warm, 2);  // loads what it needs now, not in a signal handler

    unsigned a, b, c, d;
    bool erms = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & (1u << 9)) != 0;
    char vendor[13] = {};
    if (__get_cpuid(1, &a, &b, &c, &d) && (c & (1u << 31)) != 0) {
        __cpuid(0x40000000, a, b, c, d);
        memcpy(vendor, &b, 4);
        memcpy(vendor + 4, &c, 4);
        memcpy(vendor + 8, &d, 4);
    }
    // QEMU's TCG claims fast rep movsb and does it byte by byte.
    if (erms && strcmp(vendor, "TCGTCGTCGTCG") != 0) nth_rep_min = 2048;
}

int watch_user_access() {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (c & (1u << 4)) == 0) return -1;  // OSPKE
    int key = pkey_alloc(0, 0);
    if (key <= 0) return -1;
    __cpuid_count(0xd, 9, a, b, c, d);
    if (b == 0) return -1;
    g_pkru_offset = b;
    nth_pkru_denied = 1u << (2 * key);
    g_user_access_watched = true;
    return key;
}

bool copy_from_user(void *to, uint64_t from, uint64_t size) {
    UserAccess open;
    return nth_safe_copy(to, reinterpret_cast<const void *>(from), size) == 0;
}

bool copy_to_user(uint64_t to, const void *from, uint64_t size) {
    UserAccess open;
    return nth_safe_copy(reinterpret_cast<void *>(to), from, size) == 0;
}

}  // namespace nth
