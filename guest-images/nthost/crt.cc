// SPDX-License-Identifier: GPL-2.0-or-later
//
// msvcrt.dll: start-up and exit, memory, threads, environment, setjmp, small things. stdio and strings have their own
// files.
#include <cerrno>
#include <clocale>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "crt_state.h"
#include "exception.h"
#include "heap.h"
#include "imports.h"
#include "unwind.h"

extern char **environ;

extern "C" {
void nth_ms_memmove();
void nth_ms_memset();
void nth_ms_memcmp();
}

namespace nth {

using namespace nt;

std::unique_ptr<CrtState, void (*)(CrtState *)> make_crt_state(Process *p) {
    auto *c = new CrtState;
    c->process = p;
    for (int i = 0; i < 3; i++) {
        c->iob[i].file = i;
        c->iob[i].flag = i == 0 ? 1 : 2;
        c->iob[i].host = i == 0 ? stdin : i == 1 ? stdout : stderr;
    }
    // The command line, split as the Windows run-time does it.
    const char *s = p->command_line.c_str();
    while (*s != 0) {
        while (*s == ' ' || *s == '\t') s++;
        if (*s == 0) break;
        std::string word;
        bool quoted = false;
        while (*s != 0 && (quoted || (*s != ' ' && *s != '\t'))) {
            size_t slashes = 0;
            while (s[slashes] == '\\') slashes++;
            if (s[slashes] == '"') {
                word.append(slashes / 2, '\\');
                s += slashes;
                if (slashes % 2 == 1) word += '"';
                else quoted = !quoted;
                s++;
            } else if (slashes > 0) {
                word.append(slashes, '\\');
                s += slashes;
            } else {
                word += *s++;
            }
        }
        c->argument_storage.push_back(word);
    }
    for (auto &a : c->argument_storage) c->wide_storage.push_back(widen(a));
    for (auto &a : c->argument_storage) c->argv.push_back(a.data());
    for (auto &a : c->wide_storage) c->wargv.push_back(a.data());
    c->argv.push_back(nullptr);
    c->wargv.push_back(nullptr);
    for (char **e = environ; *e != nullptr; e++) c->environment.push_back(*e);
    c->environment.push_back(nullptr);
    c->command_line = p->command_line.data();
    return {c, [](CrtState *s) { delete s; }};
}

void crt_flush(Process *p) {
    if (!p->crt) return;
    for (auto &f : p->crt->iob)
        if (f.host != nullptr && f.host != stdin) fflush(f.host);
}

// msvcrt shares the small errno values with Linux.
int crt_set_errno(int e) {
    current()->crt_errno = e == ENAMETOOLONG ? 38
                           : e == ENOSYS     ? 40
                           : e == ENOTEMPTY  ? 41
                           : e == EDEADLK    ? 36
                           : e < 40          ? e
                                             : EINVAL;
    return -1;
}

void crt_run_at_exit() {
    CrtState &c = crt();
    for (;;) {
        uint64_t f;
        {
            Locked l(c.lock);
            if (c.at_exit.empty()) return;
            f = c.at_exit.back();
            c.at_exit.pop_back();
        }
        call_pe(reinterpret_cast<int(NTAPI *)()>(f));
    }
}

namespace {

int g_fmode, g_commode;
char **g_initenv;
char16_t **g_winitenv;
char *g_acmdln;
char16_t *g_wcmdln;
int g_argc_data;

int NTAPI __getmainargs(int *argc, char ***argv, char ***env, int, void *) {
    CrtState &c = crt();
    *argc = static_cast<int>(c.argv.size() - 1);
    *argv = c.argv.data();
    *env = c.environment.data();
    g_acmdln = c.command_line;
    return 0;
}

int NTAPI __wgetmainargs(int *argc, char16_t ***argv, char16_t ***env, int, void *) {
    static char16_t *none[1] = {};
    CrtState &c = crt();
    *argc = static_cast<int>(c.wargv.size() - 1);
    *argv = c.wargv.data();
    *env = none;
    return 0;
}

void NTAPI __set_app_type(int) {}
void NTAPI __setusermatherr(void *) {}
int *NTAPI __p__fmode() {
    return &g_fmode;
}
int *NTAPI __p__commode() {
    return &g_commode;
}
char **NTAPI __p__acmdln() {
    g_acmdln = crt().command_line;
    return &g_acmdln;
}
char ***NTAPI __p___initenv() {
    g_initenv = crt().environment.data();
    return &g_initenv;
}
char ***NTAPI __p__environ() {
    return __p___initenv();
}

void NTAPI _initterm(uint64_t *first, uint64_t *last) {
    for (; first < last; first++)
        if (*first != 0) call_pe(reinterpret_cast<void(NTAPI *)()>(*first));
}

int NTAPI _initterm_e(uint64_t *first, uint64_t *last) {
    for (; first < last; first++) {
        if (*first == 0) continue;
        if (int r = call_pe(reinterpret_cast<int(NTAPI *)()>(*first)); r != 0) return r;
    }
    return 0;
}

uint64_t NTAPI _onexit(uint64_t f) {
    CrtState &c = crt();
    Locked l(c.lock);
    c.at_exit.push_back(f);
    return f;
}
int NTAPI atexit_(uint64_t f) {
    return _onexit(f) != 0 ? 0 : 1;
}

void NTAPI exit_(int code) {
    crt_run_at_exit();
    exit_process(static_cast<uint32_t>(code));
}
void NTAPI _exit_(int code) {
    exit_process(static_cast<uint32_t>(code));
}
void NTAPI _cexit() {
    crt_run_at_exit();
    crt_flush(current()->process);
}
void NTAPI _c_exit() {}
void NTAPI _amsg_exit(int code) {
    note("process %u: C run-time error %d", current()->process->id, code);
    exit_process(255);
}

void NTAPI abort_() {
    note("process %u (%s): abort()", current()->process->id, current()->process->name.c_str());
    exit_process(3);
}

void NTAPI _assert(const char *what, const char *file, unsigned line) {
    note("assertion failed: %s, file %s, line %u", what, file, line);
    exit_process(3);
}

void *NTAPI signal_(int, void *) {
    return nullptr;
}
int NTAPI raise_(int) {
    exit_process(3);
}

// ---- memory
void *NTAPI malloc_(uint64_t n) {
    return user_malloc(n);
}
void NTAPI free_(void *p) {
    if (p != nullptr) user_free(p);
}
void *NTAPI calloc_(uint64_t a, uint64_t b) {
    uint64_t n;
    if (__builtin_mul_overflow(a, b, &n)) return nullptr;
    return heap_allocate(current()->process->heap, n, true);
}
void *NTAPI realloc_(void *p, uint64_t n) {
    if (p != nullptr && n == 0) {
        user_free(p);
        return nullptr;
    }
    return heap_reallocate(current()->process->heap, p, n, false);
}
void *NTAPI _aligned_malloc(uint64_t n, uint64_t align) {
    if (align == 0 || (align & (align - 1)) != 0 || align > 65536) return nullptr;
    return heap_allocate(current()->process->heap, n, false, align);
}
void NTAPI _aligned_free(void *p) {
    free_(p);
}
uint64_t NTAPI _msize(void *p) {
    return heap_size(current()->process->heap, p);
}

// ---- errno, locale
int *NTAPI _errno() {
    return &current()->crt_errno;
}
unsigned NTAPI ___lc_codepage_func() {
    return 0;
}
int NTAPI ___mb_cur_max_func() {
    return 1;
}
struct MsLconv {  // only the strings and the characters that follow them
    const char *text[10];
    char number[8];
    const char *wide[8];
};
void *NTAPI localeconv_() {
    static char16_t dot[] = u".", none[] = u"";
    static MsLconv l = {{".", "", "", "", "", "", "", "", "", ""},
                        {127, 127, 127, 127, 127, 127, 127, 127},
                        {reinterpret_cast<char *>(dot), reinterpret_cast<char *>(none), reinterpret_cast<char *>(none),
                         reinterpret_cast<char *>(none), reinterpret_cast<char *>(none), reinterpret_cast<char *>(none),
                         reinterpret_cast<char *>(none), reinterpret_cast<char *>(none)}};
    return &l;
}
const char *NTAPI setlocale_(int, const char *name) {
    return name == nullptr || *name == 0 || strcmp(name, "C") == 0 || strcmp(name, "POSIX") == 0 ? "C" : nullptr;
}

void NTAPI _lock(int n) {
    CrtState &c = crt();
    n &= 63;
    if (c.lock_owner[n] == current()) {
        c.lock_depth[n]++;
        return;
    }
    c.locks[n].lock();
    c.lock_owner[n] = current();
    c.lock_depth[n] = 1;
}
void NTAPI _unlock(int n) {
    CrtState &c = crt();
    n &= 63;
    if (--c.lock_depth[n] > 0) return;
    c.lock_owner[n] = nullptr;
    c.locks[n].unlock();
}

// ---- environment
char *NTAPI getenv_(const char *name) {
    return getenv(name);
}
int NTAPI _putenv(const char *text) {
    return putenv(strdup(text));
}

// ---- numbers, sorting, random
int NTAPI abs_(int v) {
    return v < 0 ? -v : v;
}
int NTAPI rand_() {
    Thread *t = current();
    t->rand_state = t->rand_state * 214013 + 2531011;
    return t->rand_state >> 16 & 0x7fff;
}
void NTAPI srand_(unsigned seed) {
    current()->rand_state = static_cast<int>(seed);
}

using Compare = int NTAPI(const void *, const void *);
void NTAPI qsort_(void *base, uint64_t count, uint64_t size, Compare *compare) {
    // Heap sort: no recursion and no memory of its own, so that an exception may leave it from the comparison.
    auto *b = static_cast<uint8_t *>(base);
    auto at = [&](uint64_t i) { return b + i * size; };
    auto swap = [&](uint64_t i, uint64_t j) {
        uint8_t *x = at(i), *y = at(j);
        for (uint64_t k = 0; k < size; k++) std::swap(x[k], y[k]);
    };
    auto sift = [&](uint64_t root, uint64_t n) {
        for (uint64_t child; (child = 2 * root + 1) < n; root = child) {
            if (child + 1 < n && call_pe(compare, (const void *)at(child), (const void *)at(child + 1)) < 0) child++;
            if (call_pe(compare, (const void *)at(root), (const void *)at(child)) >= 0) return;
            swap(root, child);
        }
    };
    for (uint64_t i = count / 2; i-- > 0;) sift(i, count);
    for (uint64_t n = count; n > 1; n--) {
        swap(0, n - 1);
        sift(0, n - 1);
    }
}
void *NTAPI bsearch_(const void *key, const void *base, uint64_t count, uint64_t size, Compare *compare) {
    auto *b = static_cast<const uint8_t *>(base);
    while (count > 0) {
        const uint8_t *mid = b + count / 2 * size;
        int c = call_pe(compare, key, (const void *)mid);
        if (c == 0) return const_cast<uint8_t *>(mid);
        if (c > 0) {
            b = mid + size;
            count -= count / 2 + 1;
        } else {
            count /= 2;
        }
    }
    return nullptr;
}

#define MATH1(name)                  \
    double NTAPI name##_(double x) { \
        return std::name(x);         \
    }
#define MATH2(name)                            \
    double NTAPI name##_(double x, double y) { \
        return std::name(x, y);                \
    }
MATH1(sin)
MATH1(cos)
MATH1(tan)
MATH1(asin)
MATH1(acos)
MATH1(atan) MATH1(exp) MATH1(log) MATH1(log10) MATH1(sqrt) MATH1(floor) MATH1(ceil) MATH1(sinh) MATH1(cosh) MATH1(tanh)
    MATH1(fabs) MATH2(pow) MATH2(fmod) MATH2(atan2) float NTAPI powf_(float x, float y) {
    return std::pow(x, y);
}
float NTAPI sqrtf_(float x) {
    return std::sqrt(x);
}
double NTAPI modf_(double x, double *i) {
    return std::modf(x, i);
}
double NTAPI frexp_(double x, int *e) {
    return std::frexp(x, e);
}
double NTAPI ldexp_(double x, int e) {
    return std::ldexp(x, e);
}

// ---- time
int64_t NTAPI _time64(int64_t *t) {
    int64_t now = ::time(nullptr);
    if (t != nullptr) *t = now;
    return now;
}
int32_t NTAPI clock_() {
    return static_cast<int32_t>(monotonic_ns() / 1000000);
}
struct tm *NTAPI _localtime64(const int64_t *t) {
    static thread_local struct tm out;
    time_t v = *t;
    return localtime_r(&v, &out);
}
struct tm *NTAPI _gmtime64(const int64_t *t) {
    static thread_local struct tm out;
    time_t v = *t;
    return gmtime_r(&v, &out);
}
uint64_t NTAPI strftime_(char *out, uint64_t size, const char *format, const struct tm *t) {
    struct tm copy {};
    memcpy(&copy, t, 9 * sizeof(int));  // msvcrt's tm has no zone
    return strftime(out, size, format, &copy);
}
int64_t NTAPI _mktime64(struct tm *t) {
    struct tm copy {};
    memcpy(&copy, t, 9 * sizeof(int));
    return mktime(&copy);
}
struct MsTimeb {
    int64_t time;
    unsigned short millitm;
    short timezone, dstflag;
};
void NTAPI _ftime64(MsTimeb *t) {
    timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    *t = {ts.tv_sec, static_cast<unsigned short>(ts.tv_nsec / 1000000), 0, 0};
}

// ---- threads
uint64_t NTAPI _beginthreadex(void *, unsigned stack, uint64_t start, uint64_t argument, unsigned flags, unsigned *id) {
    Thread *t = create_thread(current()->process, start, argument, stack != 0 ? stack : 1 << 20, false);
    if (t == nullptr) {
        current()->crt_errno = EAGAIN;
        return 0;
    }
    if (id != nullptr) *id = t->id;
    if (flags & 4) t->suspend_count = 1;
    uint64_t handle = current()->process->handles.insert(t);
    start_thread(t);
    object_release(t);
    return handle;
}
uint64_t NTAPI _beginthread(uint64_t start, unsigned stack, uint64_t argument) {
    return _beginthreadex(nullptr, stack, start, argument, 0, nullptr);
}
void NTAPI _endthreadex(unsigned code) {
    notify_thread(current()->process, 3);
    exit_current_thread(code);
}
void NTAPI _endthread() {
    _endthreadex(0);
}

// ---- setjmp (_JUMP_BUFFER)
struct JumpBuffer {
    uint64_t frame, rbx, rsp, rbp, rsi, rdi, r12, r13, r14, r15, rip, mxcsr;
    M128 xmm[10];
};
int NTAPI _setjmp(JumpBuffer *b, uint64_t frame) {
    CONTEXT c;
    context_of_caller(current(), &c);
    *b = {frame,      c.Reg[RBX], c.Reg[RSP], c.Reg[RBP], c.Reg[RSI], c.Reg[RDI], c.Reg[R12],
          c.Reg[R13], c.Reg[R14], c.Reg[R15], c.Rip,      0x1f80,     {}};
    memcpy(b->xmm, &c.Xmm[6], sizeof b->xmm);
    return 0;
}
void NTAPI longjmp_(JumpBuffer *b, int value) {
    CONTEXT c{};
    c.MxCsr = 0x1f80;
    c.Reg[RAX] = static_cast<uint32_t>(value != 0 ? value : 1);
    c.Reg[RBX] = b->rbx;
    c.Reg[RSP] = b->rsp;
    c.Reg[RBP] = b->rbp;
    c.Reg[RSI] = b->rsi;
    c.Reg[RDI] = b->rdi;
    c.Reg[R12] = b->r12;
    c.Reg[R13] = b->r13;
    c.Reg[R14] = b->r14;
    c.Reg[R15] = b->r15;
    c.Rip = b->rip;
    memcpy(&c.Xmm[6], b->xmm, sizeof b->xmm);
    restore_context(&c);
}

const Import imports[] = {
    FN(__getmainargs),
    FN(__wgetmainargs),
    FN(__set_app_type),
    FN(__setusermatherr),
    FN(__p__fmode),
    FN(__p__commode),
    FN(__p__acmdln),
    FN(__p___initenv),
    FN(__p__environ),
    FN(_initterm),
    FN(_initterm_e),
    FN(_onexit),
    FN_AS("atexit", atexit_),
    FN_AS("exit", exit_),
    FN_AS("_exit", _exit_),
    FN(_cexit),
    FN(_c_exit),
    FN(_amsg_exit),
    FN_AS("abort", abort_),
    FN(_assert),
    FN_AS("signal", signal_),
    FN_AS("raise", raise_),
    FN_AS("malloc", malloc_),
    FN_AS("free", free_),
    FN_AS("calloc", calloc_),
    FN_AS("realloc", realloc_),
    FN(_aligned_malloc),
    FN(_aligned_free),
    FN(_msize),
    LEAF(_errno),
    LEAF(___lc_codepage_func),
    LEAF(___mb_cur_max_func),
    FN_AS("localeconv", localeconv_),
    FN_AS("setlocale", setlocale_),
    FN(_lock),
    FN(_unlock),
    FN_AS("getenv", getenv_),
    FN(_putenv),
    FN_AS("abs", abs_),
    FN_AS("labs", abs_),
    FN_AS("rand", rand_),
    FN_AS("srand", srand_),
    FN_AS("qsort", qsort_),
    FN_AS("bsearch", bsearch_),
    LEAF_AS("sin", sin_),
    LEAF_AS("cos", cos_),
    LEAF_AS("tan", tan_),
    LEAF_AS("asin", asin_),
    LEAF_AS("acos", acos_),
    LEAF_AS("atan", atan_),
    LEAF_AS("exp", exp_),
    LEAF_AS("log", log_),
    LEAF_AS("log10", log10_),
    LEAF_AS("sqrt", sqrt_),
    LEAF_AS("floor", floor_),
    LEAF_AS("ceil", ceil_),
    LEAF_AS("sinh", sinh_),
    LEAF_AS("cosh", cosh_),
    LEAF_AS("tanh", tanh_),
    LEAF_AS("fabs", fabs_),
    LEAF_AS("pow", pow_),
    LEAF_AS("fmod", fmod_),
    LEAF_AS("atan2", atan2_),
    LEAF_AS("powf", powf_),
    LEAF_AS("sqrtf", sqrtf_),
    FN_AS("modf", modf_),
    FN_AS("frexp", frexp_),
    LEAF_AS("ldexp", ldexp_),
    FN(_time64),
    FN_AS("time", _time64),
    FN_AS("clock", clock_),
    FN(_localtime64),
    FN(_gmtime64),
    FN_AS("strftime", strftime_),
    FN_AS("localtime", _localtime64),
    FN_AS("gmtime", _gmtime64),
    FN_AS("mktime", _mktime64),
    FN(_mktime64),
    FN(_ftime64),
    FN(_beginthreadex),
    FN(_beginthread),
    FN(_endthreadex),
    FN(_endthread),
    FN(_setjmp),
    FN_AS("setjmp", _setjmp),
    FN_AS("longjmp", longjmp_),
    LEAF_AS("memcpy", nth_ms_memmove),
    LEAF_AS("memmove", nth_ms_memmove),
    LEAF_AS("memset", nth_ms_memset),
    LEAF_AS("memcmp", nth_ms_memcmp),
    DATA_AS("_fmode", g_fmode),
    DATA_AS("_commode", g_commode),
    DATA_AS("__initenv", g_initenv),
    DATA_AS("__winitenv", g_winitenv),
    DATA_AS("_acmdln", g_acmdln),
    DATA_AS("_wcmdln", g_wcmdln),
    DATA_AS("__argc", g_argc_data),
};
const ImportTable registered("msvcrt.dll", imports);

}  // namespace

}  // namespace nth
