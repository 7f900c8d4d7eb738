// SPDX-License-Identifier: GPL-2.0-or-later
#include "interrupt.h"

#include <signal.h>

namespace lab {

namespace {

volatile sig_atomic_t g_signal = 0;
bool g_no_more = false;  // of the main thread, which is the only one that throws

}  // namespace

void catch_interrupts() {
    struct sigaction act = {};
    act.sa_handler = [](int signal) { g_signal = signal; };
    sigaction(SIGINT, &act, nullptr);
    sigaction(SIGTERM, &act, nullptr);
    // Under nohup it stays ignored.
    struct sigaction old;
    if (sigaction(SIGHUP, nullptr, &old) == 0 && old.sa_handler != SIG_IGN) sigaction(SIGHUP, &act, nullptr);
}

void throw_if_interrupted() {
    if (g_signal == 0 || g_no_more) return;
    g_no_more = true;
    throw Interrupted{g_signal};
}

void finish_despite_interrupts() { g_no_more = true; }

}  // namespace lab
