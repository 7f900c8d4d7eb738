// SPDX-License-Identifier: GPL-2.0-or-later
//
// setupapi.dll and newdev.dll: driver packages and the drivers of PCI devices, as far as an installer calls them. Of an INF it
// understands what installing a single driver file needs; signatures are not looked at. The driver is entered, not started: --driver
// does that. --fail driver makes the calls fail; UpdateDriverForPlugAndPlayDevicesW counts once for each of its stages.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "imports.h"
#include "setup_state.h"
#include "user.h"
#include "verifier.h"

namespace nth {

using namespace nt;

bool add_service_entry(const std::string &name, const std::string &text, DWORD type, DWORD start, DWORD error_control,
                       const std::string &image);

namespace {

constexpr DWORD NO_SYSTEM_RESOURCES = 1450, INVALID_DATA = 13, NO_MORE_ITEMS = 259;
constexpr DWORD INF_IN_USE = 0xE000023D, NO_SUCH_DEVICE = 0xE000020B, NO_DRIVER_FITS = 0xE0000203;
constexpr DWORD FORCE_DELETE = 1, NO_OVERWRITE = 8, FORCE_INSTALL = 1;

std::string host_path(const WCHAR *name) {
    std::string s = narrow_z(name);
    std::replace(s.begin(), s.end(), '\\', '/');
    return s;
}
std::optional<std::string> content_of(const std::string &path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) return std::nullopt;
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
}
bool put(const std::string &path, const std::string &content) {
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out << content;
    return static_cast<bool>(out.flush());
}
std::string inf_path(const std::string &name) {
    return setup_state().windows + "/INF/" + name;
}

// ---- what an INF says
struct Inf {
    std::vector<std::string> hardware_ids, files;
    std::string service, service_text, image;
    DWORD type = 1, start = 3, error_control = 1;
};
std::string trimmed(std::string s) {
    s.erase(0, std::min(s.find_first_not_of(" \t\r\""), s.size()));
    s.erase(s.find_last_not_of(" \t\r\"") + 1);
    return s;
}
using Section = std::vector<std::pair<std::string, std::string>>;  // key (may be empty) and value
std::optional<Inf> read_inf(const std::string &text) {
    std::map<std::string, Section> sections;
    Section *section = nullptr;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) {
        line = trimmed(line.substr(0, line.find(';')));
        if (line.empty()) continue;
        if (line[0] == '[') {
            section = &sections[lower(line.substr(1, line.find(']') - 1))];
            continue;
        }
        size_t equals = line.find('=');
        std::string key = equals == std::string::npos ? "" : trimmed(line.substr(0, equals));
        if (section != nullptr) section->emplace_back(key, trimmed(equals == std::string::npos ? line : line.substr(equals + 1)));
    }
    auto value = [&](const std::string &name, const std::string &key) -> std::string {
        for (auto &[k, v] : sections[lower(name)])
            if (lower(k) == lower(key)) return v;
        return "";
    };
    auto word = [](const std::string &list, size_t n) {
        std::istringstream parts(list);
        std::string part;
        for (size_t i = 0; i <= n; i++)
            if (!std::getline(parts, part, ',')) return std::string();
        return trimmed(part);
    };
    auto resolved = [&](std::string s) {
        if (s.size() > 2 && s.front() == '%' && s.back() == '%') s = value("strings", s.substr(1, s.size() - 2));
        return s;
    };
    Inf inf;
    std::string install;
    for (auto &[key, list] : sections["manufacturer"]) {
        std::string models = word(list, 0);
        if (lower(word(list, 1)) != "ntamd64") continue;
        for (auto &[description, model] : sections[lower(models + ".NTamd64")]) {
            install = word(model, 0);
            inf.hardware_ids.push_back(word(model, 1));
        }
    }
    if (install.empty()) return std::nullopt;
    if (!sections.contains(lower(install)) && sections.contains(lower(install + ".NT"))) install += ".NT";
    for (auto &[key, file] : sections[lower(value(install, "CopyFiles"))]) inf.files.push_back(word(file, 0));
    std::string service = value(install + ".Services", "AddService"), details = word(service, 2);
    inf.service = word(service, 0);
    inf.service_text = resolved(value(details, "DisplayName"));
    inf.type = static_cast<DWORD>(atoi(value(details, "ServiceType").c_str()));
    inf.start = static_cast<DWORD>(atoi(value(details, "StartType").c_str()));
    inf.error_control = static_cast<DWORD>(atoi(value(details, "ErrorControl").c_str()));
    std::string binary = value(details, "ServiceBinary");  // %12%: System32\drivers
    if (inf.service.empty() || lower(binary).rfind("%12%\\", 0) != 0) return std::nullopt;
    inf.image = "system32\\DRIVERS\\" + binary.substr(5);
    return inf;
}
bool fits(const PciDevice &d, const std::string &id) {
    return std::any_of(d.hardware_ids.begin(), d.hardware_ids.end(), [&](auto &h) { return lower(h) == lower(id); });
}

// ---- packages. Under s.lock. Name of the one with that content, made if there is none.
std::string package_with(SetupState &s, const std::string &content, const std::string &folder, bool *fresh) {
    std::string free;
    *fresh = false;
    for (int i = 0; i < 1000; i++) {
        std::string name = "oem" + std::to_string(i) + ".inf";
        auto there = content_of(inf_path(name));
        if (there && *there == content) return name;
        if (!there && free.empty()) free = name;
    }
    *fresh = true;
    if (free.empty() || !put(inf_path(free), content)) return "";
    s.packages.emplace_back(free, folder);
    return free;
}
std::string folder_of(const std::string &path) {
    size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash);
}

BOOL NTAPI SetupCopyOEMInfW(const WCHAR *source, const WCHAR *media, DWORD, DWORD style, WCHAR *target, DWORD size, DWORD *needed,
                            WCHAR **component) {
    if (should_fail(Fail::Driver)) return fail(NO_SYSTEM_RESOURCES);
    std::string path = host_path(source);
    auto content = content_of(path);
    if (!content) return fail(ERROR_FILE_NOT_FOUND);
    if (!read_inf(*content)) return fail(NO_DRIVER_FITS);
    SetupState &s = setup_state();
    Locked l(s.lock);
    bool fresh;
    std::string name = package_with(s, *content, media != nullptr ? host_path(media) : folder_of(path), &fresh);
    if (name.empty()) return fail(ERROR_ACCESS_DENIED);
    std::string full = inf_path(name);
    std::replace(full.begin(), full.end(), '/', '\\');
    std::u16string w = widen(full);
    if (needed != nullptr) *needed = static_cast<DWORD>(w.size() + 1);
    if (target != nullptr) {
        if (size <= w.size()) return fail(ERROR_INSUFFICIENT_BUFFER);
        memcpy(target, w.c_str(), w.size() * 2 + 2);
        if (component != nullptr) *component = target + w.rfind(u'\\') + 1;
    }
    return !fresh && (style & NO_OVERWRITE) != 0 ? fail(ERROR_FILE_EXISTS) : 1;
}
BOOL NTAPI SetupSetNonInteractiveMode(BOOL) {
    return 0;  // the mode before; nthost never asks
}
BOOL NTAPI SetupUninstallOEMInfW(const WCHAR *name, DWORD flags, void *) {
    if (should_fail(Fail::Driver)) return fail(NO_SYSTEM_RESOURCES);
    SetupState &s = setup_state();
    Locked l(s.lock);
    std::string inf = narrow_z(name);
    for (auto &d : s.devices)
        if (d.inf == inf && (flags & FORCE_DELETE) == 0) return fail(INF_IN_USE);
    if (unlink(inf_path(inf).c_str()) != 0) return fail(ERROR_FILE_NOT_FOUND);
    std::erase_if(s.packages, [&](auto &p) { return p.first == inf; });
    return 1;
}

// ---- devices
bool copy_driver_files(const Inf &inf, const std::string &folder) {
    for (auto &file : inf.files) {
        auto content = content_of(folder + "/" + file);
        std::string target = setup_state().windows + "/System32/drivers/" + file;
        if (!content || !put(target, *content)) return false;
    }
    return true;
}
void give_driver(PciDevice &d, const Inf &inf, const std::string &name) {
    add_service_entry(inf.service, inf.service_text, inf.type, inf.start, inf.error_control, inf.image);
    d.inf = name;
    d.service = inf.service;
}

BOOL NTAPI UpdateDriverForPlugAndPlayDevicesW(uint64_t, const WCHAR *id, const WCHAR *path, DWORD flags, BOOL *reboot) {
    if (should_fail(Fail::Driver)) return fail(NO_SYSTEM_RESOURCES);
    std::string file = host_path(path), hardware_id = narrow_z(id), folder = folder_of(file);
    auto content = content_of(file);
    if (!content) return fail(ERROR_FILE_NOT_FOUND);
    auto inf = read_inf(*content);
    if (!inf || std::none_of(inf->hardware_ids.begin(), inf->hardware_ids.end(), [&](auto &h) { return lower(h) == lower(hardware_id); }))
        return fail(NO_DRIVER_FITS);
    SetupState &s = setup_state();
    Locked l(s.lock);
    bool any = false, changed = false, fresh;
    for (auto &d : s.devices) any = any || (!d.removed && fits(d, hardware_id));
    if (!any) return fail(NO_SUCH_DEVICE);
    std::string name = package_with(s, *content, folder, &fresh);
    if (name.empty()) return fail(ERROR_ACCESS_DENIED);
    // An INF of Windows' own: its files are where the package came from.
    for (auto &[package, from] : s.packages)
        if (package == name && file == inf_path(name)) folder = from;
    if (should_fail(Fail::Driver)) return fail(NO_SYSTEM_RESOURCES);
    if (!copy_driver_files(*inf, folder)) return fail(ERROR_FILE_NOT_FOUND);
    if (should_fail(Fail::Driver)) return fail(NO_SYSTEM_RESOURCES);
    for (auto &d : s.devices) {
        if (d.removed || !fits(d, hardware_id) || (d.inf == name && (flags & FORCE_INSTALL) == 0)) continue;
        give_driver(d, *inf, name);
        changed = true;
    }
    if (reboot != nullptr) *reboot = 0;
    return changed ? 1 : fail(NO_MORE_ITEMS);
}

// A device information set is what was there when it was made; its handle is small, its devices are named by position.
struct DeviceSet {
    std::vector<size_t> devices;
};
std::map<uint64_t, DeviceSet> g_sets;
uint64_t g_next_set = 0x5000;
struct DeviceData {
    DWORD size;
    uint8_t class_id[16];
    DWORD node;
    uint64_t reserved;
};
static_assert(sizeof(DeviceData) == 32);

uint64_t NTAPI SetupDiGetClassDevsW(const void *, const WCHAR *enumerator, uint64_t, DWORD flags) {
    if (should_fail(Fail::Driver)) return fail(NO_SYSTEM_RESOURCES), INVALID_HANDLE;
    SetupState &s = setup_state();
    Locked l(s.lock);
    DeviceSet set;
    bool pci = enumerator == nullptr || lower(narrow_z(enumerator)) == "pci";
    for (size_t i = 0; pci && (flags & 4) != 0 && i < s.devices.size(); i++)
        if (!s.devices[i].removed) set.devices.push_back(i);
    g_sets[g_next_set += 4] = set;
    return g_next_set;
}
PciDevice *device_of(SetupState &s, const DeviceData *d) {
    size_t i = d != nullptr ? d->node - 1 : ~size_t{0};
    return i < s.devices.size() ? &s.devices[i] : nullptr;
}
BOOL NTAPI SetupDiEnumDeviceInfo(uint64_t handle, DWORD index, DeviceData *out) {
    if (should_fail(Fail::Driver)) return fail(NO_SYSTEM_RESOURCES);
    Locked l(setup_state().lock);
    auto set = g_sets.find(handle);
    if (set == g_sets.end()) return fail(ERROR_INVALID_HANDLE);
    if (out->size != sizeof *out) return fail(ERROR_INVALID_PARAMETER);
    if (index >= set->second.devices.size()) return fail(NO_MORE_ITEMS);
    out->node = static_cast<DWORD>(set->second.devices[index] + 1);
    return 1;
}
BOOL NTAPI SetupDiGetDeviceRegistryPropertyW(uint64_t, const DeviceData *data, DWORD which, DWORD *type, uint8_t *out, DWORD size,
                                             DWORD *needed) {
    if (should_fail(Fail::Driver)) return fail(NO_SYSTEM_RESOURCES);
    SetupState &s = setup_state();
    Locked l(s.lock);
    PciDevice *d = device_of(s, data);
    if (d == nullptr) return fail(ERROR_INVALID_HANDLE);
    std::u16string text;
    if (which == 1) {  // hardware ids
        for (auto &id : d->hardware_ids) text += widen(id) + u'\0';
        text += u'\0';
        if (type != nullptr) *type = 7;
    } else if (which == 4 && !d->service.empty()) {
        text = widen(d->service) + u'\0';
        if (type != nullptr) *type = 1;
    } else {
        return fail(INVALID_DATA);
    }
    if (needed != nullptr) *needed = static_cast<DWORD>(text.size() * 2);
    if (size < text.size() * 2) return fail(ERROR_INSUFFICIENT_BUFFER);
    memcpy(out, text.data(), text.size() * 2);
    return 1;
}
BOOL NTAPI SetupDiCallClassInstaller(DWORD function, uint64_t, const DeviceData *data) {
    if (should_fail(Fail::Driver)) return fail(NO_SYSTEM_RESOURCES);
    if (function != 5) return fail(ERROR_CALL_NOT_IMPLEMENTED);  // DIF_REMOVE
    SetupState &s = setup_state();
    Locked l(s.lock);
    PciDevice *d = device_of(s, data);
    if (d == nullptr || d->removed) return fail(NO_SUCH_DEVICE);
    d->inf.clear();
    d->service.clear();
    d->removed = true;
    return 1;
}
BOOL NTAPI SetupDiDestroyDeviceInfoList(uint64_t handle) {
    Locked l(setup_state().lock);
    return g_sets.erase(handle) != 0 ? 1 : fail(ERROR_INVALID_HANDLE);
}

DWORD NTAPI CM_Locate_DevNodeW(DWORD *node, const WCHAR *id, ULONG) {
    if (should_fail(Fail::Driver)) return 0x02;  // CR_OUT_OF_MEMORY
    if (id != nullptr) return 0x0d;              // CR_NO_SUCH_DEVNODE: only the root is known here
    *node = 0;
    return 0;
}
// Devices that were removed appear again, and get the driver of a package that fits, as Windows gives it to them.
DWORD NTAPI CM_Reenumerate_DevNode(DWORD, ULONG) {
    if (should_fail(Fail::Driver)) return 0x02;
    SetupState &s = setup_state();
    Locked l(s.lock);
    for (auto &d : s.devices) {
        if (!d.removed) continue;
        d.removed = false;
        for (auto &[name, folder] : s.packages) {
            auto inf = read_inf(content_of(inf_path(name)).value_or(""));
            if (!inf || std::none_of(inf->hardware_ids.begin(), inf->hardware_ids.end(), [&](auto &h) { return fits(d, h); })) continue;
            if (copy_driver_files(*inf, folder)) give_driver(d, *inf, name);
        }
    }
    return 0;
}

const Import setup_imports[] = {
    FN(SetupCopyOEMInfW),
    FN(SetupSetNonInteractiveMode),
    FN(SetupUninstallOEMInfW),
    FN(SetupDiGetClassDevsW),
    FN(SetupDiEnumDeviceInfo),
    FN(SetupDiGetDeviceRegistryPropertyW),
    FN(SetupDiCallClassInstaller),
    FN(SetupDiDestroyDeviceInfoList),
    FN(CM_Locate_DevNodeW),
    FN(CM_Reenumerate_DevNode),
};
const ImportTable registered_setup("setupapi.dll", setup_imports);
const Import newdev_imports[] = {FN(UpdateDriverForPlugAndPlayDevicesW)};
const ImportTable registered_newdev("newdev.dll", newdev_imports);

}  // namespace

}  // namespace nth
