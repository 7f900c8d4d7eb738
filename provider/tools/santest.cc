// SPDX-License-Identifier: GPL-2.0-or-later
//
// santest.exe: the conformance program. One line per rule: "WSD-117 pass", "fail" with expected and seen, or "n/a" with the
// reason. `santest --serve` is the partner for those that take two machines.
#include "conformance.h"
#include "sanlab_version.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace santest {

namespace {

struct Options {
    bool serve = false, list = false, die = false;
    uint32_t server_ip = 0;
    uint16_t port = 18600;
    uint32_t timeout_ms = 30000;
    const char *filter = nullptr;
    const char *report = nullptr;
    const char *tier = "";
    const char *provider = nullptr;
    const char *child = nullptr;
    uint32_t stress = 0; // rounds
    uint32_t seed = 1;
};

constexpr uint32_t run_magic = 0x54534554;
constexpr uint32_t stress_id = 1000; // beyond the rules
// From the client: run your half of that check, or of the stress, or (id 0) end.
struct Order {
    uint32_t magic;
    uint32_t id;
    uint32_t client_ip;
    uint32_t rounds, seed; // of the stress
};

void usage(FILE *out) {
    fprintf(out, "Usage: santest [options]           checks that take one machine\n"
                 "       santest [options] SERVER    all checks, with the partner at that address\n"
                 "       santest --serve [options]   be the partner\n\n"
                 "  -p, --port=N        first port to use (default 18600; as many as there are rules)\n"
                 "      --filter=TEXT   only rules whose id begins so (WSD-1; WSD-140,WSD-16; ...)\n"
                 "      --list          list the rules that are checked\n"
                 "      --die           connect to the partner, get into the middle of everything, and terminate the process\n"
                 "      --stress=N      instead of the checks: four threads on each side register, free, protect and transfer\n"
                 "                      at the same time, N rounds each\n"
                 "      --seed=N        what the threads of --stress do (default 1)\n"
                 "      --report=FILE   write a table (Markdown)\n"
                 "      --tier=TEXT     what the table says of where this runs\n"
                 "      --timeout=N     seconds to wait for the partner (default 30)\n"
                 "      --provider=DLL  provider to load (default sanprov.dll)\n"
                 "      --version       the version of this program\n");
}

bool parse_ip(const char *text, uint32_t &out) {
    unsigned a, b, c, d;
    char rest;
    if (sscanf(text, "%u.%u.%u.%u%c", &a, &b, &c, &d, &rest) != 4 || (a | b | c | d) > 255) return false;
    out = a << 24 | b << 16 | c << 8 | d;
    return true;
}

int wrong(const char *option, const char *accepted) {
    fprintf(stderr, "santest: \"%s\" is not accepted; %s\n", option, accepted);
    return 2;
}

const char *value_of(const char *argument, const char *name) {
    const size_t n = strlen(name);
    return strncmp(argument, name, n) == 0 && argument[n] == '=' ? argument + n + 1 : nullptr;
}

// 0, -1 for "help or version was shown", or an exit status.
int parse(int argc, char **argv, Options &o) {
    for (int i = 1; i < argc; ++i) {
        const char *a = argv[i], *v;
        if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0) {
            usage(stdout);
            return -1;
        }
        if (strcmp(a, "--version") == 0) {
            printf("santest " SANLAB_VERSION "\n");
            return -1;
        }
        if (strcmp(a, "--serve") == 0) o.serve = true;
        else if (strcmp(a, "--list") == 0) o.list = true;
        else if (strcmp(a, "--die") == 0) o.die = true;
        else if ((v = value_of(a, "--filter"))) o.filter = v;
        else if ((v = value_of(a, "--report")) || (strcmp(a, "--report") == 0 && i + 1 < argc && (v = argv[++i]))) o.report = v;
        else if ((v = value_of(a, "--tier"))) o.tier = v;
        else if ((v = value_of(a, "--provider"))) o.provider = v;
        else if ((v = value_of(a, "--child"))) o.child = v; // started by another santest
        else if ((v = value_of(a, "--seed"))) o.seed = static_cast<uint32_t>(strtoul(v, nullptr, 10));
        else if ((v = value_of(a, "--stress"))) {
            const int n = atoi(v);
            if (n < 1 || n > 1000000) return wrong(a, "--stress takes 1 to 1000000 rounds");
            o.stress = static_cast<uint32_t>(n);
        } else if ((v = value_of(a, "--timeout"))) {
            const int n = atoi(v);
            if (n < 1 || n > 3600) return wrong(a, "--timeout takes 1 to 3600 seconds");
            o.timeout_ms = static_cast<uint32_t>(n) * 1000;
        } else if ((v = value_of(a, "--port")) || (strcmp(a, "-p") == 0 && i + 1 < argc && (v = argv[++i]))) {
            const int n = atoi(v);
            if (n < 1 || n > 65000) return wrong(a, "--port takes 1 to 65000");
            o.port = static_cast<uint16_t>(n);
        } else if (a[0] == '-') return wrong(a, "santest --help lists the options");
        else if (!parse_ip(a, o.server_ip)) return wrong(a, "an IPv4 address like 10.0.0.1 is");
    }
    return 0;
}

bool selected(const Options &o, const Check &check) {
    char name[16];
    snprintf(name, sizeof name, "WSD-%03u", check.id);
    if (!o.filter) return true;
    for (const char *at = o.filter; *at;) {
        const size_t n = strcspn(at, ",");
        if (n && strncmp(name, at, n) == 0) return true;
        at += n;
        if (*at) ++at;
    }
    return false;
}

const char *tier_text = "";

struct Totals {
    unsigned passed = 0, failed = 0, skipped = 0;
};

void report_line(FILE *report, const Check &check, const char *verdict, const char *text, Totals &totals) {
    printf("WSD-%03u %s%s%s\n", check.id, verdict, *text ? ": " : "", text);
    fflush(stdout);
    if (report) fprintf(report, "| WSD-%03u | %s | %s | %s | %s |\n", check.id, check.text, verdict, strcmp(verdict, "n/a") ? tier_text : "", text);
    ++(strcmp(verdict, "pass") == 0 ? totals.passed : strcmp(verdict, "fail") == 0 ? totals.failed : totals.skipped);
}

int serve(const Options &o) {
    Socket listener;
    santools::Channel channel;
    int error = listener.open();
    if (!error) error = listener.bind(0, o.port);
    if (!error) error = listener.listen(4);
    if (!error) error = listener.accept(channel.socket, o.timeout_ms);
    if (!error) error = channel.start(o.timeout_ms);
    if (error) {
        fprintf(stderr, "santest: no client came: error %d\n", error);
        return 1;
    }
    uint32_t own_ip = 0;
    int result = 0;
    sanswitch::addresses(&own_ip, 1);
    for (;;) {
        Order order = {};
        error = channel.hear(&order, sizeof order);
        if (error || order.magic != run_magic) {
            fprintf(stderr, "santest: the client is gone: error %d\n", error);
            return 1;
        }
        if (order.id == 0) return result;
        if (order.id == stress_id) {
            result |= run_stress({false, own_ip, channel.socket.peer_ip(), static_cast<uint16_t>(o.port + 1), order.rounds, order.seed});
            continue;
        }
        Check *check = first_check;
        while (check && check->id != order.id) check = check->next;
        Context t;
        t.client = false;
        t.own_ip = own_ip;
        t.peer_ip = channel.socket.peer_ip();
        t.port = static_cast<uint16_t>(o.port + order.id + 1);
        t.attach(&channel);
        if (check && check->partner) check->partner(t);
        else t.fail("partner: it does not know this check");
        t.finish();
        if (t.channel_lost) return 1;
    }
}

void close_report(FILE *report, const Totals &totals) {
    if (!report) return;
    fprintf(report, "\n%u passed, %u failed, %u not applicable.\n", totals.passed, totals.failed, totals.skipped);
    fclose(report);
}

Check *find_check(unsigned id) {
    for (Check *c = first_check; c; c = c->next)
        if (c->id == id) return c;
    return nullptr;
}

// The outcome of each rule, as rules may be proven together.
struct Outcome {
    bool done, failed;
    char text[256];
};
Outcome outcomes[1000];

class Runner {
  public:
    Runner(const Options &o, santools::Channel &channel, uint32_t own_ip) : o_(o), channel_(channel), own_ip_(own_ip) {}
    bool lost() const { return lost_; }

    void run(const Check &check) {
        Outcome &out = outcomes[check.id];
        if (out.done) return;
        out.done = true;
        Context t;
        t.own_ip = own_ip_;
        t.peer_ip = o_.server_ip;
        t.port = static_cast<uint16_t>(o_.port + check.id + 1);
        if (check.pair) {
            const Order order = {run_magic, check.id, own_ip_, 0, 0};
            if (channel_.tell(&order, sizeof order)) lost_ = true;
            t.attach(&channel_);
        }
        if (!lost_) check.body(t);
        t.finish();
        lost_ |= t.channel_lost;
        out.failed = t.failed() || lost_;
        memcpy(out.text, t.text(), sizeof out.text);
    }

  private:
    const Options &o_;
    santools::Channel &channel_;
    uint32_t own_ip_;
    bool lost_ = false;
};

int run(const Options &o) {
    FILE *report = o.report ? fopen(o.report, "w") : nullptr;
    tier_text = o.tier;
    if (o.report && !report) return wrong(o.report, "--report needs a file that can be written");
    if (report) fprintf(report, "| id | rule | result | tier | remark |\n|---|---|---|---|---|\n");
    santools::Channel channel;
    uint32_t own_ip = 0;
    sanswitch::addresses(&own_ip, 1);
    if (o.server_ip) {
        int error = santools::connect_patiently(channel.socket, own_ip, o.server_ip, o.port, o.timeout_ms);
        if (!error) error = channel.start(o.timeout_ms);
        if (error) {
            fprintf(stderr, "santest: no partner at that address: error %d (start `santest --serve` there)\n", error);
            return 1;
        }
    }
    Totals totals;
    Runner runner(o, channel, own_ip);
    for (Check *check = first_check; check; check = check->next) {
        if (!selected(o, *check)) continue;
        if (check->reason) {
            report_line(report, *check, "n/a", check->reason, totals);
            continue;
        }
        const Check *proof = check->with ? find_check(check->with) : check;
        if (!proof || !proof->body) {
            report_line(report, *check, "fail", "the check that proves it is missing", totals);
        } else if (proof->pair && (!o.server_ip || runner.lost())) {
            report_line(report, *check, runner.lost() ? "fail" : "n/a", runner.lost() ? "the partner is gone" : "takes a partner",
                        totals);
        } else {
            runner.run(*proof);
            const Outcome &out = outcomes[proof->id];
            report_line(report, *check, out.failed ? "fail" : "pass", out.text, totals);
        }
    }
    if (o.server_ip && !runner.lost()) {
        const Order end = {run_magic, 0, 0, 0, 0};
        channel.tell(&end, sizeof end);
    }
    close_report(report, totals);
    printf("%u passed, %u failed, %u skipped\n", totals.passed, totals.failed, totals.skipped);
    return totals.failed ? 1 : 0;
}

int stress(const Options &o) {
    santools::Channel channel;
    uint32_t own_ip = 0;
    sanswitch::addresses(&own_ip, 1);
    int error = santools::connect_patiently(channel.socket, own_ip, o.server_ip, o.port, o.timeout_ms);
    if (!error) error = channel.start(o.timeout_ms);
    const Order order = {run_magic, stress_id, own_ip, o.stress, o.seed}, end = {run_magic, 0, 0, 0, 0};
    if (!error) error = channel.tell(&order, sizeof order);
    if (error) {
        fprintf(stderr, "santest: no partner at that address: error %d (start `santest --serve` there)\n", error);
        return 1;
    }
    const int result = run_stress({true, own_ip, o.server_ip, static_cast<uint16_t>(o.port + 1), o.stress, o.seed});
    channel.tell(&end, sizeof end);
    return result;
}

// Memory registered, cached and exposed, receives posted, a connect and a listener waiting: then the process is gone.
int die(const Options &o) {
    santools::Channel channel;
    uint32_t own_ip = 0;
    sanswitch::addresses(&own_ip, 1);
    int error = santools::connect_patiently(channel.socket, own_ip, o.server_ip, o.port, o.timeout_ms);
    if (!error) error = channel.start(o.timeout_ms);
    Memory live, cached;
    Socket listener;
    RemoteBuffer exposed;
    if (!error) error = live.make(channel.socket, 1 << 20);
    if (!error) error = cached.make(channel.socket, 1 << 20);
    if (!error) error = channel.socket.deregister_memory(cached.handle);
    if (!error) error = channel.socket.expose(live.data(), 4096, MEM_READWRITE, exposed);
    if (!error) error = listener.open();
    if (!error) error = listener.bind(0, o.port);
    if (!error) error = listener.listen(4);
    if (error) {
        fprintf(stderr, "santest: error %d before it came to dying\n", error);
        return 1;
    }
    printf("santest: terminating the process\n");
    fflush(stdout);
    TerminateProcess(GetCurrentProcess(), 42);
    return 1;
}

} // namespace

} // namespace santest

int main(int argc, char **argv) {
    using namespace santest;
    Options o;
    const int status = parse(argc, argv, o);
    if (status) return status < 0 ? 0 : status;
    if (o.list) {
        for (Check *c = first_check; c; c = c->next)
            if (selected(o, *c)) printf("WSD-%03u %s%s\n", c->id, c->text, c->pair ? " (pair)" : "");
        return 0;
    }
    if (o.stress && !o.server_ip) return wrong("--stress", "it takes a partner: santest --stress=N SERVER");
    const char *what;
    const int error = sanswitch::startup(o.provider, &what);
    if (error) {
        fprintf(stderr, "santest: %s failed: error %d\n", what, error);
        return 1;
    }
    const int result = o.child ? run_child(o.child) : o.serve ? serve(o) : o.stress ? stress(o) : o.die ? die(o) : run(o);
    sanswitch::shutdown();
    return result;
}
