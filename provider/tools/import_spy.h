// SPDX-License-Identifier: GPL-2.0-or-later
//
// import_spy.h: what the provider asks of the system. Puts counting functions into the provider's import table for as long as it lives:
// a module can reach the system only through that. One at a time; calls of this thread count.
#pragma once

#include <winsock2.h>
#include <windows.h>

namespace santest {

class ImportSpy {
  public:
    ImportSpy(); // of the provider that is loaded
    ~ImportSpy();
    ImportSpy(const ImportSpy &) = delete;
    ImportSpy &operator=(const ImportSpy &) = delete;
    // False: an import that makes system calls is not one that is watched, or the table cannot be written; `problem` names it.
    bool complete() const { return problem_ == nullptr; }
    const char *problem() const { return problem_; }

    void restart();
    unsigned requests() const;     // to the driver
    unsigned system_calls() const; // those and all others
    unsigned heap_calls() const;

  private:
    const char *problem_ = nullptr;
};

} // namespace santest
