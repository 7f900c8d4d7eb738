// SPDX-License-Identifier: GPL-2.0-or-later
#include "paths.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace lab {

namespace fs = std::filesystem;

namespace {

std::string need(const std::string &path) {
    if (!fs::exists(path)) throw UserError(path + " does not exist; build it with: scripts/build");
    return path;
}

}  // namespace

Paths Paths::find() {
    Paths p;
    fs::path self = fs::read_symlink("/proc/self/exe").parent_path();
    p.programs = self.string();
    const char *out = std::getenv("SANLAB_OUT");
    fs::path root = out ? fs::path(out) : self.parent_path();
    p.windows = (root / "windows").string();
    p.micro = (root / "micro").string();
    if (const char *run = std::getenv("SANLAB_RUN")) p.run = run;
    else if (geteuid() == 0) p.run = "/run/sanlab";
    else if (const char *xdg = std::getenv("XDG_RUNTIME_DIR")) p.run = std::string(xdg) + "/sanlab";
    else p.run = "/tmp/sanlab-" + std::to_string(geteuid());
    return p;
}

std::string Paths::need_program(const std::string &name) const { return need(program(name)); }
std::string Paths::need_windows(const std::string &name) const { return need(windows + '/' + name); }
std::string Paths::need_micro(const std::string &name) const { return need(micro + '/' + name); }

}  // namespace lab
