// SPDX-License-Identifier: GPL-2.0-or-later
// runner.h: one program that runs somewhere, its output line by line, and its end. A reader thread feeds the lines to
// `sink`.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace lab {

enum class Stream { output, error };
using LineSink = std::function<void(Stream, const std::string &)>;

class Runner {
  public:
    virtual ~Runner() = default;
    // Exit status; 128 + signal; 124 after a time-out. Empty: not ended within `seconds`.
    virtual std::optional<int> wait(double seconds) = 0;
    virtual void kill() = 0;
};

// A child process of this one. It dies with its parent.
class Process : public Runner {
  public:
    Process(const std::vector<std::string> &argv, LineSink sink);
    ~Process() override;
    std::optional<int> wait(double seconds) override;
    void kill() override;
    void terminate();  // SIGTERM
    pid_t pid() const { return pid_; }

  private:
    void read_all();
    pid_t pid_ = -1;
    int out_ = -1, err_ = -1;
    LineSink sink_;
    std::thread reader_;
    std::mutex mutex_;
    std::condition_variable ended_;
    std::optional<int> status_;  // guarded by mutex_
};

}  // namespace lab
