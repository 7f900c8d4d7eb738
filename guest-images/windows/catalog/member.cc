// SPDX-License-Identifier: GPL-2.0-or-later
#include "member.h"

#include <openssl/evp.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

namespace sancat {

namespace {

constexpr size_t kMostBytes = size_t{256} << 20;

// What the Authenticode hash takes, or nothing: not a PE file.
std::optional<Bytes> signed_part(const Bytes &file, const std::string &path) {
    auto number = [&](size_t offset, size_t bytes) {
        if (offset > file.size() || bytes > file.size() - offset) throw Error(path + " is a PE file that ends in the middle of a header");
        size_t value = 0;
        for (size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<uint8_t>(file[offset + i]);
        return value;
    };
    if (file.size() < 0x40 || file[0] != 'M' || file[1] != 'Z') return std::nullopt;
    const size_t pe = number(0x3C, 4);
    if (pe > file.size() || file.compare(pe, 4, std::string("PE\0\0", 4)) != 0) return std::nullopt;
    const size_t optional_header = pe + 24, magic = number(optional_header, 2);
    if (magic != 0x10B && magic != 0x20B) throw Error(path + " is a PE file of unknown kind " + std::to_string(magic));
    const size_t checksum = optional_header + 64;
    const size_t directory_count = optional_header + (magic == 0x20B ? 108 : 92);
    constexpr size_t kCertificates = 4;
    if (number(directory_count, 4) <= kCertificates) throw Error(path + " is a PE file without room for a signature");
    const size_t entry = directory_count + 4 + 8 * kCertificates;
    const size_t table = number(entry, 4), table_size = number(entry + 4, 4);
    size_t end = file.size();
    if (table || table_size) {
        // Bytes behind the table would be neither hashed nor part of the signature.
        if (table < entry + 8 || table > file.size() || file.size() - table != table_size)
            throw Error(path + " is a PE file whose certificate table is not its end");
        end = table;
    }
    Bytes part = file.substr(0, checksum);
    part.append(file, checksum + 4, entry - (checksum + 4));
    part.append(file, entry + 8, end - (entry + 8));
    // The table begins at a multiple of 8: signing pads the file with zeros, which are hashed.
    part.append((8 - end % 8) % 8, '\0');
    return part;
}

}  // namespace

const char *hash_name(Hash hash) { return hash == Hash::sha1 ? "sha1" : "sha256"; }

Bytes digest_of(Hash hash, std::string_view data) {
    unsigned char out[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    if (EVP_Digest(data.data(), data.size(), out, &size, hash == Hash::sha1 ? EVP_sha1() : EVP_sha256(), nullptr) != 1)
        throw Error(std::string("libcrypto does not compute ") + hash_name(hash));
    return Bytes(reinterpret_cast<char *>(out), size);
}

std::string hex(std::string_view bytes) {
    static constexpr char digits[] = "0123456789ABCDEF";
    std::string out;
    for (char c : bytes) out += {digits[static_cast<uint8_t>(c) >> 4], digits[c & 15]};
    return out;
}

std::string base_name(const std::string &path) { return path.substr(path.find_last_of('/') + 1); }

Bytes read_file(const std::string &path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw Error("cannot read " + path + ": " + std::strerror(errno));
    Bytes content((std::istreambuf_iterator<char>(in)), {});
    if (in.bad()) throw Error("cannot read " + path);
    if (content.size() > kMostBytes) throw Error(path + " is larger than 256 MiB");
    return content;
}

Member read_member(const std::string &path) {
    const Bytes file = read_file(path);
    const std::optional<Bytes> part = signed_part(file, path);
    const std::string_view hashed = part ? *part : file;
    return {base_name(path), part.has_value(), digest_of(Hash::sha1, hashed), digest_of(Hash::sha256, hashed)};
}

}  // namespace sancat
