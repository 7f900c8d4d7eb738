// SPDX-License-Identifier: GPL-2.0-or-later
#include "setup_state.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "registry.h"

namespace nth {

using Json = nlohmann::ordered_json;

SetupState &setup_state() {
    static SetupState s;
    return s;
}

namespace {

std::string g_file;

constexpr const char *kTypes[] = {"REG_NONE",     "REG_SZ",   "REG_EXPAND_SZ", "REG_BINARY", "REG_DWORD", nullptr,
                                  nullptr,        "REG_MULTI_SZ", nullptr,     nullptr,      nullptr,     "REG_QWORD"};
constexpr const char *kCatalogs[] = {"catalog64", "catalog32"};

std::string hex(const uint8_t *p, size_t n) {
    std::string out;
    char two[3];
    for (size_t i = 0; i < n; i++) {
        snprintf(two, sizeof two, "%02x", p[i]);
        out += two;
    }
    return out;
}
std::vector<uint8_t> unhex(const std::string &text) {
    std::vector<uint8_t> out;
    for (size_t i = 0; i + 1 < text.size(); i += 2)
        out.push_back(static_cast<uint8_t>(std::stoul(text.substr(i, 2), nullptr, 16)));
    return out;
}
std::string guid_text(const uint8_t *g) {
    char out[40];
    snprintf(out, sizeof out, "{%02X%02X%02X%02X-%02X%02X-%02X%02X-%02X%02X-%02X%02X%02X%02X%02X%02X}", g[3], g[2], g[1], g[0], g[5],
             g[4], g[7], g[6], g[8], g[9], g[10], g[11], g[12], g[13], g[14], g[15]);
    return out;
}
void guid_from(const std::string &text, uint8_t *g) {
    std::string digits;
    for (char c : text)
        if (isxdigit(static_cast<unsigned char>(c))) digits += c;
    if (digits.size() != 32) throw std::invalid_argument("not a GUID: " + text);
    std::vector<uint8_t> b = unhex(digits);
    static constexpr int kOrder[16] = {3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int i = 0; i < 16; i++) g[i] = b[kOrder[i]];
}

// ---- registry values: text and numbers as such, everything else in hexadecimal
std::vector<std::u16string> strings_of(const std::vector<uint8_t> &data) {
    std::u16string all(data.size() / 2, 0);
    memcpy(all.data(), data.data(), all.size() * 2);
    std::vector<std::u16string> out;
    for (size_t at = 0; at < all.size() && all[at] != 0; at += out.back().size() + 1) out.push_back(all.c_str() + at);
    return out;
}
void append(std::vector<uint8_t> &data, const std::string &text) {
    std::u16string w = widen(text);
    auto *p = reinterpret_cast<const uint8_t *>(w.c_str());
    data.insert(data.end(), p, p + w.size() * 2 + 2);
}
Json to_json(const RegistryValue &v) {
    const char *type = v.type < std::size(kTypes) ? kTypes[v.type] : nullptr;
    Json out = {{"type", type != nullptr ? Json(type) : Json(v.type)}};
    uint64_t number = 0;
    if ((v.type == 1 || v.type == 2) && v.data.size() >= 2) {
        std::u16string w(v.data.size() / 2, 0);
        memcpy(w.data(), v.data.data(), w.size() * 2);
        size_t length = std::char_traits<char16_t>::length(w.c_str());
        out["data"] = narrow(w.data(), std::min(length, w.size()));
    } else if (v.type == 7) {
        out["data"] = Json::array();
        for (auto &s : strings_of(v.data)) out["data"].push_back(narrow(s.data(), s.size()));
    } else if ((v.type == 4 && v.data.size() == 4) || (v.type == 11 && v.data.size() == 8)) {
        memcpy(&number, v.data.data(), v.data.size());
        out["data"] = number;
    } else {
        out["data"] = hex(v.data.data(), v.data.size());
    }
    return out;
}
RegistryValue value_from(const Json &j) {
    RegistryValue v{};
    const Json &type = j.at("type"), &data = j.at("data");
    if (type.is_number()) v.type = type;
    else
        for (uint32_t i = 0; i < std::size(kTypes); i++)
            if (kTypes[i] != nullptr && type == kTypes[i]) v.type = i;
    if (v.type == 0 && type != "REG_NONE") throw std::invalid_argument("unknown value type " + type.dump());
    if (v.type == 1 || v.type == 2) {
        append(v.data, data.get<std::string>());
    } else if (v.type == 7) {
        for (auto &s : data) append(v.data, s.get<std::string>());
        v.data.resize(v.data.size() + 2);
    } else if (v.type == 4 || v.type == 11) {
        uint64_t number = data;
        v.data.resize(v.type == 4 ? 4 : 8);
        memcpy(v.data.data(), &number, v.data.size());
    } else {
        v.data = unhex(data);
    }
    return v;
}

Json to_json(const CatalogEntry &e) {
    const ProtocolInfo &i = e.info;
    Json chain = Json::array();
    for (int k = 0; k < std::min(i.chain_length, 7); k++) chain.push_back(i.chain[k]);
    return {{"id", i.id},
            {"provider", guid_text(i.provider)},
            {"path", e.path},
            {"protocol", narrow(i.text, std::char_traits<char16_t>::length(i.text))},
            {"service_flags", {i.service_flags[0], i.service_flags[1], i.service_flags[2], i.service_flags[3]}},
            {"provider_flags", i.provider_flags},
            {"chain_length", i.chain_length},
            {"chain", i.chain_length > 1 ? chain : Json::array()},
            {"version", i.version},
            {"family", i.family},
            {"max_address", i.max_address},
            {"min_address", i.min_address},
            {"socket_type", i.socket_type},
            {"protocol_number", i.protocol},
            {"protocol_max_offset", i.protocol_max_offset},
            {"byte_order", i.byte_order},
            {"security", i.security},
            {"message_size", i.message_size}};
}
CatalogEntry entry_from(const Json &j) {
    CatalogEntry e{};
    ProtocolInfo &i = e.info;
    i.id = j.at("id");
    guid_from(j.at("provider"), i.provider);
    e.path = j.at("path");
    std::u16string text = widen(j.at("protocol"));
    if (text.size() > 255) throw std::invalid_argument("protocol text of more than 255 characters");
    memcpy(i.text, text.c_str(), text.size() * 2 + 2);
    for (int k = 0; k < 4; k++) i.service_flags[k] = j.at("service_flags").at(k);
    i.provider_flags = j.at("provider_flags");
    i.chain_length = j.at("chain_length");
    for (size_t k = 0; k < j.at("chain").size() && k < 7; k++) i.chain[k] = j.at("chain").at(k);
    i.version = j.at("version");
    i.family = j.at("family");
    i.max_address = j.at("max_address");
    i.min_address = j.at("min_address");
    i.socket_type = j.at("socket_type");
    i.protocol = j.at("protocol_number");
    i.protocol_max_offset = j.at("protocol_max_offset");
    i.byte_order = j.at("byte_order");
    i.security = j.at("security");
    i.message_size = j.at("message_size");
    return e;
}

const std::string kShown = "HKLM";
std::string shown(const std::string &path) {
    return kShown + path.substr(strlen(MACHINE_KEY));
}

// The file is written over at the end: one of somebody else's must not be taken for a state that says nothing.
void load(const Json &j) {
    static constexpr const char *kKeys[] = {"runs_32_bit", "catalog_adds_first", "next_catalog_id", "catalog64", "catalog32",
                                            "devices",     "packages",           "registry",        "at_restart", "in_use"};
    if (!j.is_object()) throw std::invalid_argument("expected a JSON object");
    for (auto &[name, value] : j.items())
        if (std::find(std::begin(kKeys), std::end(kKeys), name) == std::end(kKeys))
            throw std::invalid_argument("unknown key '" + name + "': the file is not a state of nthost's, and is left alone");
    SetupState &s = setup_state();
    s.runs_32_bit = j.value("runs_32_bit", true);
    s.catalog_adds_first = j.value("catalog_adds_first", false);
    s.next_catalog_id = j.value("next_catalog_id", 1001u);
    for (int view = 0; view < 2; view++)
        for (auto &e : j.value(kCatalogs[view], Json::array())) s.catalog[view].push_back(entry_from(e));
    for (auto &d : j.value("devices", Json::array()))
        s.devices.push_back({d.at("hardware_ids").get<std::vector<std::string>>(), d.value("inf", ""), d.value("service", ""),
                             d.value("removed", false)});
    // Named: items() refers to what it is called on.
    const Json packages = j.value("packages", Json::object()), keys = j.value("registry", Json::object());
    for (auto &[name, folder] : packages.items()) s.packages.emplace_back(name, folder);
    registry().create_key(MACHINE_KEY);
    for (auto &[path, key] : keys.items()) {
        if (path.rfind(kShown + "\\", 0) != 0) throw std::invalid_argument("registry key " + path + " is not below HKLM");
        std::string full = MACHINE_KEY + path.substr(kShown.size());
        registry().create_key(full, key.value("class", ""));
        const Json values = key.value("values", Json::object());
        for (auto &[name, value] : values.items()) registry().set(full, name, value_from(value));
    }
    s.at_restart = j.value("at_restart", std::vector<std::string>());
    for (auto &name : j.value("in_use", Json::array())) {
        struct stat st;
        std::string path = s.windows + "/" + name.get<std::string>();
        if (stat(path.c_str(), &st) != 0) throw std::invalid_argument("in_use names " + path + ", which does not exist");
        s.in_use.emplace(st.st_dev, st.st_ino);
    }
}

Json save() {
    SetupState &s = setup_state();
    Json j = {{"runs_32_bit", s.runs_32_bit}};
    if (s.catalog_adds_first) j["catalog_adds_first"] = true;
    j["devices"] = Json::array();
    for (auto &d : s.devices) {
        Json device = {{"hardware_ids", d.hardware_ids}};
        if (!d.inf.empty()) device["inf"] = d.inf;
        if (!d.service.empty()) device["service"] = d.service;
        if (d.removed) device["removed"] = true;
        j["devices"].push_back(device);
    }
    j["packages"] = Json::object();
    for (auto &[name, folder] : s.packages) j["packages"][name] = folder;
    j["next_catalog_id"] = s.next_catalog_id;
    for (int view = 0; view < 2; view++) {
        j[kCatalogs[view]] = Json::array();
        for (auto &e : s.catalog[view]) j[kCatalogs[view]].push_back(to_json(e));
    }
    if (!s.at_restart.empty()) j["at_restart"] = s.at_restart;
    // Keys that say nothing which a key below them does not say are left out.
    Json keys = Json::object();
    for (auto &k : registry().keys_below(MACHINE_KEY)) {
        if (k.key_class.empty() && k.values.empty() && !registry().subkeys(k.path).empty()) continue;
        Json key = Json::object();
        if (!k.key_class.empty()) key["class"] = k.key_class;
        key["values"] = Json::object();
        for (auto &v : k.values) key["values"][v.name] = to_json(v.value);
        keys[shown(k.path)] = key;
    }
    j["registry"] = keys;
    return j;
}

}  // namespace

bool use_windows_directory(const std::string &directory, std::string *error) {
    char *full = realpath(directory.c_str(), nullptr);
    struct stat st;
    if (full == nullptr || stat(full, &st) != 0 || !S_ISDIR(st.st_mode)) {
        *error = "--windows " + directory + ": expected a directory";
        free(full);
        return false;
    }
    setup_state().windows = full;
    free(full);
    for (const char *name : {"System32", "System32/drivers", "SysWOW64", "INF"}) {
        std::string path = setup_state().windows + "/" + name;
        if (mkdir(path.c_str(), 0777) == 0 || errno == EEXIST) continue;
        *error = "--windows " + directory + ": cannot make " + path + ": " + strerror(errno);
        return false;
    }
    return true;
}

bool load_setup_state(const std::string &file, std::string *error) {
    g_file = file;
    std::ifstream in(file);
    std::string folder = file.find('/') == std::string::npos ? "." : file.substr(0, file.rfind('/') + 1);
    if (access(folder.c_str(), W_OK) != 0 || (!in && access(file.c_str(), F_OK) == 0)) {  // rather than at the end
        *error = "--registry " + file + ": " + strerror(errno);
        return false;
    }
    try {
        if (in) load(Json::parse(in));
        else registry().create_key(MACHINE_KEY);
    } catch (const std::exception &e) {
        *error = "--registry " + file + ": " + e.what();
        return false;
    }
    return true;
}

void save_setup_state() {
    if (g_file.empty()) return;
    std::string part = g_file + ".part";
    {
        std::ofstream out(part, std::ios::trunc);
        out << save().dump(2) << "\n";
        if (!out.flush()) host_bug("cannot write %s", part.c_str());
    }
    if (rename(part.c_str(), g_file.c_str()) != 0) host_bug("cannot write %s: %s", g_file.c_str(), strerror(errno));
}

}  // namespace nth
