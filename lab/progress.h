// SPDX-License-Identifier: GPL-2.0-or-later
// progress.h: tells on standard error that something long is going on: a spinner on a terminal, plain lines elsewhere.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

namespace lab {

class Progress {
  public:
    explicit Progress(std::string what);
    // Says how it ended; "done" if nobody called this, "failed" during an exception.
    ~Progress();
    void done(const std::string &how);

  private:
    std::string what_;
    bool terminal_;
    bool finished_ = false;
    int exceptions_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
    std::atomic<bool> stop_{false};
    std::thread spinner_;
};

}  // namespace lab
