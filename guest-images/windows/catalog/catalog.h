// SPDX-License-Identifier: GPL-2.0-or-later
// catalog.h: a Windows catalog: PKCS#7 SignedData around a certificate trust list (1.3.6.1.4.1.311.10.1) whose subjects are files.
//
//   SEQUENCE {                                  the list
//     SEQUENCE { OID catalog list }             12.1.1 (all numbers here are below 1.3.6.1.4.1.311)
//     OCTET STRING                              identifier of the list
//     UTCTime                                   when it was made
//     SEQUENCE { OID member list, NULL }        12.1.2: generation 1, 12.1.3: generation 2
//     SEQUENCE OF SEQUENCE {                    one for each file
//       OCTET STRING                            tag. Generation 1: the SHA-1 hash in hex, as UTF-16 with a final zero;
//                                               generation 2: the bytes of the hash
//       SET OF { OID, SET { value } }           2.1.4 the hash, with what it was taken of; 12.2.2 or 12.2.3 the kind of file;
//     }                                         12.2.1 texts: File (its name), OSAttr (versions of Windows)
//     [0] { SEQUENCE OF { OID, OCTET STRING } } 12.2.1 texts of the whole catalog: OS, HWID1...
//   }
//
// Windows before 8 reads generation 1 only; it hashes with SHA-1. Generation 2 hashes with SHA-256, and lists each file a second time
// under its SHA-1 hash, for callers that look it up by that one.
#pragma once

#include <string>
#include <vector>

#include "member.h"

namespace sancat {

enum class Generation { one = 1, two = 2 };

struct Entry {
    Hash hash = Hash::sha256;
    Bytes digest;        // from the tag
    std::string file;    // its File text; empty: none
    bool pe = false;     // by the kind of its hash; only when has_data
    bool has_data = false;  // carries the hash itself (2.1.4) and not only the tag; the two are equal
};

struct Catalog {
    Generation generation = Generation::two;
    std::vector<Entry> entries;
    std::vector<std::string> texts;  // "HWID1=pci\ven..."
    Bytes list;                      // the list as it is signed: the content of its outermost element
    bool is_signed = false;          // carries a signature, true or not

    // Throws Error when it is not a catalog, or one that contradicts itself. Does not look at the signature.
    static Catalog parse(const Bytes &file);
};

// Not signed yet. `when` is a UNIX time.
Bytes make_catalog(Generation generation, const std::vector<Member> &members, const std::vector<std::string> &hardware_ids, int64_t when);

}  // namespace sancat
