// SPDX-License-Identifier: GPL-2.0-or-later
// inf.h: what a catalog must know of an INF: its own name, the files that the INF installs, the hardware that it is for.
#pragma once

#include <string>
#include <vector>

namespace sancat {

struct Inf {
    std::string catalog;                    // CatalogFile of [Version]
    std::vector<std::string> files;         // names in [SourceDisksFiles]
    std::vector<std::string> hardware_ids;  // lower case, from the models sections

    // Throws Error that names the file and what it lacks.
    static Inf read(const std::string &path);
};

}  // namespace sancat
