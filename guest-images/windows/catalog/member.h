// SPDX-License-Identifier: GPL-2.0-or-later
// member.h: the hash under which a catalog knows a file. A PE file is known by its Authenticode hash, which leaves out what signing
// changes (checksum, entry of the certificate table, the table itself); any other file by the hash of all its bytes.
#pragma once

#include <string>

#include "der.h"

namespace sancat {

enum class Hash { sha1, sha256 };
const char *hash_name(Hash hash);

struct Member {
    std::string name;  // without folder
    bool pe = false;
    Bytes sha1, sha256;
    const Bytes &digest(Hash hash) const { return hash == Hash::sha1 ? sha1 : sha256; }
};

// Throws Error when the file cannot be read, or is a PE file that contradicts itself.
Member read_member(const std::string &path);

Bytes read_file(const std::string &path);
Bytes digest_of(Hash hash, std::string_view data);
std::string hex(std::string_view bytes);
std::string base_name(const std::string &path);

}  // namespace sancat
