// SPDX-License-Identifier: GPL-2.0-or-later
#include "progress.h"

#include <unistd.h>

#include <cstdio>
#include <exception>

namespace lab {

Progress::Progress(std::string what)
    : what_(std::move(what)), terminal_(isatty(2) == 1), exceptions_(std::uncaught_exceptions()) {
    if (!terminal_) return;
    spinner_ = std::thread([this] {
        for (unsigned i = 0; !stop_; i++) {
            if (i) std::fprintf(stderr, "\r%c %s ", "|/-\\"[i % 4], what_.c_str());
            for (int n = 0; n < 10 && !stop_; n++) std::this_thread::sleep_for(std::chrono::milliseconds(15));
        }
    });
}

void Progress::done(const std::string &how) {
    if (finished_) return;
    finished_ = true;
    stop_ = true;
    if (spinner_.joinable()) spinner_.join();
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    std::fprintf(stderr, "%s%s: %s (%.1f s)\n", terminal_ ? "\r" : "", what_.c_str(), how.c_str(), seconds);
}

Progress::~Progress() { done(std::uncaught_exceptions() > exceptions_ ? "failed" : "done"); }

}  // namespace lab
