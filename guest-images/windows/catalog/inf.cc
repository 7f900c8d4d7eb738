// SPDX-License-Identifier: GPL-2.0-or-later
#include "inf.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "member.h"

namespace sancat {

namespace {

std::string lower(std::string text) {
    for (char &c : text)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
    return text;
}

std::string trimmed(const std::string &text) {
    const size_t begin = text.find_first_not_of(" \t\r"), end = text.find_last_not_of(" \t\r");
    return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

std::vector<std::string> list(const std::string &text) {
    std::vector<std::string> items;
    std::istringstream in(text);
    for (std::string item; std::getline(in, item, ',');) items.push_back(trimmed(item));
    return items;
}

struct Line {
    std::string key, value;
};
using Sections = std::map<std::string, std::vector<Line>>;  // by lower-case name

Sections parse(const std::string &text) {
    Sections sections;
    std::vector<Line> *section = nullptr;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) {
        bool quoted = false;
        for (size_t i = 0; i < line.size(); i++) {
            if (line[i] == '"') quoted = !quoted;
            if (line[i] == ';' && !quoted) line.resize(i);
        }
        line = trimmed(line);
        if (line.size() > 2 && line.front() == '[' && line.back() == ']') {
            section = &sections[lower(line.substr(1, line.size() - 2))];
        } else if (section && !line.empty()) {
            const size_t equals = line.find('=');
            section->push_back({trimmed(line.substr(0, equals)), equals == std::string::npos ? "" : trimmed(line.substr(equals + 1))});
        }
    }
    return sections;
}

void add_once(std::vector<std::string> &to, const std::string &item) {
    if (!item.empty() && std::find(to.begin(), to.end(), item) == to.end()) to.push_back(item);
}

}  // namespace

Inf Inf::read(const std::string &path) {
    const std::string text = read_file(path);
    if (text.find('\0') != std::string::npos) throw Error(path + " is not in an 8-bit encoding");
    const Sections sections = parse(text);
    Inf inf;
    for (const auto &[name, lines] : sections) {
        if (name == "version") {
            for (const Line &l : lines)
                if (lower(l.key) == "catalogfile") inf.catalog = l.value;
        }
        if (name == "sourcedisksfiles" || name.rfind("sourcedisksfiles.", 0) == 0)
            for (const Line &l : lines) add_once(inf.files, l.key);
        if (name == "manufacturer") {
            // %Vendor% = Models,NTamd64 names [Models.NTamd64]; a line there is: text = section, hardware ids...
            for (const Line &maker : lines) {
                const std::vector<std::string> words = list(maker.value);
                for (size_t i = 0; i < words.size(); i++) {
                    auto models = sections.find(lower(i == 0 ? words[0] : words[0] + '.' + words[i]));
                    if (models == sections.end()) continue;
                    for (const Line &model : models->second) {
                        const std::vector<std::string> ids = list(model.value);
                        for (size_t k = 1; k < ids.size(); k++) add_once(inf.hardware_ids, lower(ids[k]));
                    }
                }
            }
        }
    }
    if (inf.catalog.empty()) throw Error(path + " names no catalog: [Version] needs CatalogFile = NAME");
    if (inf.files.empty()) throw Error(path + " installs no file: [SourceDisksFiles] is missing or empty");
    return inf;
}

}  // namespace sancat
