// SPDX-License-Identifier: GPL-2.0-or-later
#include "der.h"

#include <algorithm>
#include <ctime>

namespace sancat::der {

Bytes element(uint8_t tag, const Bytes &content) {
    Bytes out(1, static_cast<char>(tag));
    const size_t size = content.size();
    if (size < 0x80) {
        out += static_cast<char>(size);
    } else {
        Bytes length;
        for (size_t rest = size; rest; rest >>= 8) length.insert(length.begin(), static_cast<char>(rest & 0xFF));
        out += static_cast<char>(0x80 | length.size());
        out += length;
    }
    return out + content;
}

Bytes sequence(std::initializer_list<Bytes> elements) {
    Bytes content;
    for (const Bytes &e : elements) content += e;
    return element(sequence_tag, content);
}

Bytes set(std::vector<Bytes> elements) {
    // std::string compares as unsigned bytes.
    std::sort(elements.begin(), elements.end());
    Bytes content;
    for (const Bytes &e : elements) content += e;
    return element(set_tag, content);
}

Bytes oid(std::string_view text) {
    std::vector<uint32_t> arcs(1, 0);
    for (char c : text) {
        if (c == '.') arcs.push_back(0);
        else arcs.back() = arcs.back() * 10 + static_cast<uint32_t>(c - '0');
    }
    Bytes content(1, static_cast<char>(arcs[0] * 40 + arcs[1]));
    for (size_t i = 2; i < arcs.size(); i++) {
        Bytes arc(1, static_cast<char>(arcs[i] & 0x7F));
        for (uint32_t rest = arcs[i] >> 7; rest; rest >>= 7) arc.insert(arc.begin(), static_cast<char>(0x80 | (rest & 0x7F)));
        content += arc;
    }
    return element(oid_tag, content);
}

Bytes integer(uint32_t value) {
    Bytes content(1, static_cast<char>(value & 0xFF));
    for (uint32_t rest = value >> 8; rest; rest >>= 8) content.insert(content.begin(), static_cast<char>(rest & 0xFF));
    if (content[0] & 0x80) content.insert(content.begin(), '\0');  // not a negative number
    return element(integer_tag, content);
}

Bytes null() { return element(null_tag, {}); }
Bytes octets(const Bytes &content) { return element(octet_string_tag, content); }

Bytes bmp_string(std::string_view ascii) {
    Bytes content;
    for (char c : ascii) content += {'\0', c};
    return element(bmp_string_tag, content);
}

Bytes utc_time(int64_t unix_time) {
    const time_t t = static_cast<time_t>(unix_time);
    tm parts = {};
    gmtime_r(&t, &parts);
    char text[32];
    const size_t size = strftime(text, sizeof text, "%y%m%d%H%M%SZ", &parts);
    return element(utc_time_tag, Bytes(text, size));
}

Element Reader::next() {
    if (data_.size() < 2) throw Error("it ends in the middle of an element");
    Element e;
    e.tag = static_cast<uint8_t>(data_[0]);
    if ((e.tag & 0x1F) == 0x1F) throw Error("it has a tag of more than one byte");
    size_t header = 2, length = static_cast<uint8_t>(data_[1]);
    if (length & 0x80) {
        const size_t count = length & 0x7F;
        if (count < 1 || count > 4) throw Error("it has an element whose length is not in definite form");
        if (data_.size() < header + count) throw Error("it ends in the middle of an element");
        length = 0;
        for (size_t i = 0; i < count; i++) length = length << 8 | static_cast<uint8_t>(data_[header + i]);
        header += count;
    }
    if (length > data_.size() - header) throw Error("it has an element that is longer than what holds it");
    e.content = data_.substr(header, length);
    data_.remove_prefix(header + length);
    return e;
}

Element Reader::expect(uint8_t tag, const char *what) {
    Element e = next();
    if (!e.is(tag)) throw Error(std::string("it has something else where ") + what + " is expected");
    return e;
}

bool Reader::take(uint8_t tag, Element &out) {
    if (data_.empty() || static_cast<uint8_t>(data_[0]) != tag) return false;
    out = next();
    return true;
}

std::string dotted(std::string_view content) {
    if (content.empty() || (content.back() & 0x80)) return "";
    const auto first = static_cast<uint8_t>(content[0]);
    const unsigned top = first < 80 ? first / 40 : 2;
    std::string text = std::to_string(top) + '.' + std::to_string(first - 40 * top);
    uint64_t arc = 0;
    for (char c : content.substr(1)) {
        if (arc >> 56) return "";
        arc = arc << 7 | (c & 0x7F);
        if (c & 0x80) continue;
        text += '.' + std::to_string(arc);
        arc = 0;
    }
    return text;
}

}  // namespace sancat::der
