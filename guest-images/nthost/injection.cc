// SPDX-License-Identifier: GPL-2.0-or-later
//
// Low-resource injection: which calls --fail makes fail.
#include <cstring>
#include <iterator>
#include <random>
#include <vector>

#include "pe_image.h"
#include "thread.h"
#include "unwind.h"
#include "verifier.h"

namespace nth {

namespace {

struct FailurePlan {
    std::vector<uint64_t> at;  // call numbers, from 1
    double probability = 0;
    std::mt19937_64 random;
    uint64_t calls = 0;
};
FailurePlan g_plans[static_cast<int>(Fail::Kinds)];
FutexLock g_plan_lock;
constexpr const char *kFailNames[] = {"pool",       "lock",   "secure",   "map",     "event",  "thread",
                                      "contiguous", "access", "heap",   "registry", "catalog", "driver", "file"};
static_assert(std::size(kFailNames) == static_cast<size_t>(Fail::Kinds));
bool g_any_plan = false;

}  // namespace

bool add_failure(const std::string &text, std::string *error) {
    size_t colon = text.find(':');
    std::string name = text.substr(0, colon), rest = colon == std::string::npos ? "" : text.substr(colon + 1);
    int kind = -1;
    for (int i = 0; i < static_cast<int>(Fail::Kinds); i++)
        if (name == kFailNames[i]) kind = i;
    auto bad = [&] {
        *error = "--fail " + text +
                 ": expected KIND:N or KIND:p=P,seed=S with KIND one of pool, lock, secure, map, event, thread, "
                 "contiguous, access, heap, registry, catalog, driver, file, "
                 "N from 1 on and P from 0 to 1";
        return false;
    };
    if (kind < 0 || rest.empty()) return bad();
    FailurePlan &plan = g_plans[kind];
    if (rest.rfind("p=", 0) == 0) {
        char *end;
        plan.probability = strtod(rest.c_str() + 2, &end);
        uint64_t seed = 1;
        if (strncmp(end, ",seed=", 6) == 0) seed = strtoull(end + 6, &end, 0);
        if (*end != 0 || !(plan.probability >= 0 && plan.probability <= 1)) return bad();
        plan.random.seed(seed);
    } else {
        char *end;
        uint64_t n = strtoull(rest.c_str(), &end, 10);
        if (*end != 0 || n == 0) return bad();
        plan.at.push_back(n);
    }
    g_any_plan = true;
    return true;
}

bool failure_planned(Fail kind) {
    const FailurePlan &plan = g_plans[static_cast<int>(kind)];
    return !plan.at.empty() || plan.probability > 0;
}

void report_unreached_failures() {
    if (!g_any_plan) return;
    Locked l(g_plan_lock);
    for (int i = 0; i < static_cast<int>(Fail::Kinds); i++)
        for (uint64_t n : g_plans[i].at)
            if (n > g_plans[i].calls)
                note("--fail %s:%llu was not reached: %llu calls", kFailNames[i], (unsigned long long)n,
                     (unsigned long long)g_plans[i].calls);
}

bool should_fail(Fail kind) {
    if (!g_any_plan) return false;
    Locked l(g_plan_lock);
    FailurePlan &plan = g_plans[static_cast<int>(kind)];
    plan.calls++;
    for (uint64_t n : plan.at)
        if (n == plan.calls) return true;
    return plan.probability > 0 && std::uniform_real_distribution<>(0, 1)(plan.random) < plan.probability;
}

bool should_fail_in_library(Fail kind) {
    nt::CONTEXT caller;
    if (!failure_planned(kind) || !context_of_caller(current(), &caller)) return false;
    const Image *image = image_of(caller.Rip);
    return image != nullptr && image->is_dll && should_fail(kind);
}

}  // namespace nth
