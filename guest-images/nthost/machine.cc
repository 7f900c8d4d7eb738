// SPDX-License-Identifier: GPL-2.0-or-later
//
// What belongs to the machine as a whole: the choice of its device, and the report about imports that it lacks.
#include <algorithm>
#include <cstdio>

#include "device.h"
#include "user.h"

namespace nth {

void report_missing_imports(const std::string &what, std::vector<std::string> imports) {
    std::sort(imports.begin(), imports.end());
    imports.erase(std::unique(imports.begin(), imports.end()), imports.end());
    note("%s needs %zu imports that nthost lacks:", what.c_str(), imports.size());
    for (auto &i : imports) fprintf(stderr, "  %s\n", i.c_str());
    exit_host(EXIT_IMPORTS);
}

std::unique_ptr<Device> make_device(const std::string &text, std::string *error) {
    if (text == "none" || text.empty()) return nullptr;
    if (text == "inproc") return make_inproc_device("", error);
    if (text.rfind("inproc,", 0) == 0) return make_inproc_device(text.substr(7), error);
    if (text.rfind("pci=", 0) == 0) return make_pci_device(text.substr(4), error);
    *error = "--device " + text + ": expected inproc[,key=value...], pci=DOMAIN:BUS:SLOT.FUNCTION or none";
    return nullptr;
}

}  // namespace nth
