// SPDX-License-Identifier: GPL-2.0-or-later
// paths.h: where sanlab finds what it runs, and where it keeps what belongs to a running lab.
#pragma once

#include <stdexcept>
#include <string>

namespace lab {

// Something the user can mend: printed as one line, exit status 2.
class UserError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Paths {
    std::string programs;  // sanlab, sanfabricd, nthost, qemu-system-x86_64: the folder this program lies in
    std::string windows;   // sanproxy.sys, sanprov.dll, sanperf.exe, santest.exe
    std::string micro;     // vmlinux, initramfs
    std::string run;  // sockets, logs, state of the running lab; $SANLAB_RUN, /run/sanlab or $XDG_RUNTIME_DIR/sanlab

    static Paths find();
    std::string program(const std::string &name) const { return programs + '/' + name; }
    // The path, if that file exists; else a UserError that says how to get it.
    std::string need_program(const std::string &name) const;
    std::string need_windows(const std::string &name) const;
    std::string need_micro(const std::string &name) const;
};

}  // namespace lab
