// SPDX-License-Identifier: GPL-2.0-or-later
// der.h: as much of ASN.1's distinguished encoding as a catalog needs. Writers return one whole element each, so that structures are
// written as nested calls. The reader walks bytes that nobody has checked: every length is held against what is there.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace sancat {

using Bytes = std::string;

// What is wrong with an input; one line for the user.
class Error : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace sancat

namespace sancat::der {

enum Tag : uint8_t {
    integer_tag = 0x02,
    bit_string_tag = 0x03,
    octet_string_tag = 0x04,
    null_tag = 0x05,
    oid_tag = 0x06,
    utc_time_tag = 0x17,
    bmp_string_tag = 0x1E,
    sequence_tag = 0x30,
    set_tag = 0x31,
};
// [N]: constructed holds elements, primitive holds bytes.
constexpr uint8_t context(unsigned n, bool constructed) { return static_cast<uint8_t>((constructed ? 0xA0 : 0x80) | n); }

Bytes element(uint8_t tag, const Bytes &content);
Bytes sequence(std::initializer_list<Bytes> elements);
// Sorts its elements, as the distinguished encoding wants it.
Bytes set(std::vector<Bytes> elements);
Bytes oid(std::string_view dotted);
Bytes integer(uint32_t value);
Bytes null();
Bytes octets(const Bytes &content);
// ASCII text only.
Bytes bmp_string(std::string_view ascii);
// YYMMDDHHMMSSZ
Bytes utc_time(int64_t unix_time);

struct Element {
    uint8_t tag = 0;
    std::string_view content;
    bool is(uint8_t wanted) const { return tag == wanted; }
};

class Reader {
  public:
    explicit Reader(std::string_view data) : data_(data) {}
    bool at_end() const { return data_.empty(); }
    // Throws Error when what follows is not a whole element with a definite length and a one-byte tag.
    Element next();
    // The same, and it must have this tag. `what` names it in the error.
    Element expect(uint8_t tag, const char *what);
    // Takes the next element if it has this tag.
    bool take(uint8_t tag, Element &out);

  private:
    std::string_view data_;
};

// "1.2.840...": empty when it is not an object identifier.
std::string dotted(std::string_view content);

}  // namespace sancat::der
