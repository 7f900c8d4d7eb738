// SPDX-License-Identifier: GPL-2.0-or-later
#include "catalog.h"

#include <algorithm>

namespace sancat {

namespace {

constexpr char kSignedData[] = "1.2.840.113549.1.7.2";
constexpr char kTrustList[] = "1.3.6.1.4.1.311.10.1";
constexpr char kCatalogList[] = "1.3.6.1.4.1.311.12.1.1";
constexpr char kMembers1[] = "1.3.6.1.4.1.311.12.1.2";
constexpr char kMembers2[] = "1.3.6.1.4.1.311.12.1.3";
constexpr char kText[] = "1.3.6.1.4.1.311.12.2.1";
constexpr char kMemberInfo1[] = "1.3.6.1.4.1.311.12.2.2";
constexpr char kMemberInfo2[] = "1.3.6.1.4.1.311.12.2.3";
constexpr char kIndirectData[] = "1.3.6.1.4.1.311.2.1.4";
constexpr char kPeImage[] = "1.3.6.1.4.1.311.2.1.15";
constexpr char kFlatFile[] = "1.3.6.1.4.1.311.2.1.25";
constexpr char kSha1[] = "1.3.14.3.2.26";
constexpr char kSha256[] = "2.16.840.1.101.3.4.2.1";

// Which of Windows' subject interface packages takes the file's hash.
constexpr char kPePackage[] = "{C689AAB8-8E78-11D0-8C47-00C04FC295EE}";
constexpr char kFlatPackage[] = "{DE351A42-8E59-11D0-8C47-00C04FC295EE}";

// The catalog is authenticated, text and name are plain.
constexpr uint32_t kTextFlags = 0x10010001;
// Windows of the NT kind (2), by version: what each generation is for.
constexpr char kVersions1[] = "2:5.2,2:6.0,2:6.1,2:6.2,2:6.3,2:10.0";
constexpr char kVersions2[] = "2:6.2,2:6.3,2:10.0";
constexpr char kSystems1[] = "Server2003X64,VistaX64,Server2008X64,7X64,Server2008R2X64";
constexpr char kSystems2[] = "8X64,Server8X64,_v63_X64,_v63_Server_X64,_v100_X64,_v100_Server_X64";

using namespace der;

Bytes utf16(std::string_view ascii, bool big_endian, bool end) {
    Bytes out;
    for (char c : ascii) big_endian ? out += {'\0', c} : out += {c, '\0'};
    if (end) out += {'\0', '\0'};
    return out;
}

Bytes text(std::string_view name, std::string_view value) {
    return sequence({bmp_string(name), integer(kTextFlags), octets(utf16(value, false, true))});
}
Bytes attribute(const char *type, const Bytes &value) { return sequence({oid(type), set({value})}); }

// SpcIndirectDataContent: what was hashed, and its hash. The link to "the file" names nothing in either generation.
Bytes indirect_data(Generation generation, const Member &m) {
    const Hash hash = generation == Generation::one ? Hash::sha1 : Hash::sha256;
    const Bytes nothing = generation == Generation::one ? utf16("<<<Obsolete>>>", true, false) : "";
    const Bytes link = element(context(2, true), element(context(0, false), nothing));
    // Flags: which resources were hashed, too (all; bits 0 and 2 are named by the format).
    const Bytes flags = element(bit_string_tag, generation == Generation::one ? Bytes("\0", 1) : Bytes("\x05\xA0", 2));
    const Bytes kind = m.pe ? sequence({oid(kPeImage), sequence({flags, element(context(0, true), link)})}) : sequence({oid(kFlatFile), link});
    return sequence({kind, sequence({sequence({oid(hash == Hash::sha1 ? kSha1 : kSha256), null()}), octets(m.digest(hash))})});
}

Bytes entry(Generation generation, const Member &m, Hash tagged_by) {
    std::vector<Bytes> attributes = {
        attribute(kText, text("File", m.name)),
        attribute(kText, text("OSAttr", generation == Generation::one ? kVersions1 : kVersions2)),
    };
    if (generation == Generation::one) {
        attributes.push_back(attribute(kMemberInfo1, sequence({bmp_string(m.pe ? kPePackage : kFlatPackage), integer(0x200)})));
        attributes.push_back(attribute(kIndirectData, indirect_data(generation, m)));
        return sequence({octets(utf16(hex(m.sha1), false, true)), set(attributes)});
    }
    attributes.push_back(attribute(kMemberInfo2, element(context(2, false), {})));
    if (tagged_by == Hash::sha256) attributes.push_back(attribute(kIndirectData, indirect_data(generation, m)));
    return sequence({octets(m.digest(tagged_by)), set(attributes)});
}

// ASCII out of UTF-16; anything else becomes '?'.
std::string ascii(std::string_view utf16, bool big_endian) {
    std::string out;
    for (size_t i = 0; i + 1 < utf16.size(); i += 2) {
        const char high = utf16[big_endian ? i : i + 1], low = utf16[big_endian ? i + 1 : i];
        if (!high && !low) break;
        out += !high && low >= 32 && low < 127 ? low : '?';
    }
    return out;
}

struct Text {
    std::string name, value;
};
Text read_text(std::string_view content) {
    Reader in(Reader(content).expect(sequence_tag, "a text").content);
    Text t;
    t.name = ascii(in.expect(bmp_string_tag, "the name of a text").content, true);
    in.expect(integer_tag, "the flags of a text");
    t.value = ascii(in.expect(octet_string_tag, "the value of a text").content, false);
    return t;
}

Hash hash_of_size(size_t size) {
    if (size == 20) return Hash::sha1;
    if (size == 32) return Hash::sha256;
    throw Error("it has a hash of " + std::to_string(size) + " bytes (20 and 32 are known)");
}

Bytes unhex(std::string_view text) {
    Bytes out;
    auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
    for (size_t i = 0; i + 1 < text.size(); i += 2) {
        const int high = digit(text[i]), low = digit(text[i + 1]);
        if (high < 0 || low < 0) throw Error("it has a tag that is not a hash in hex");
        out += static_cast<char>(high << 4 | low);
    }
    return out;
}

void read_indirect_data(std::string_view content, Entry &e) {
    Reader in(Reader(content).expect(sequence_tag, "a hash").content);
    const std::string kind = dotted(Reader(in.expect(sequence_tag, "the kind of a hash").content).expect(oid_tag, "the kind of a hash").content);
    if (kind != kPeImage && kind != kFlatFile) throw Error("it has a hash of a thing of unknown kind " + kind);
    e.pe = kind == kPeImage;
    Reader digest(in.expect(sequence_tag, "a digest").content);
    const std::string algorithm = dotted(Reader(digest.expect(sequence_tag, "a digest's algorithm").content).expect(oid_tag, "a digest's algorithm").content);
    const Bytes value(digest.expect(octet_string_tag, "a digest").content);
    if (algorithm != (e.hash == Hash::sha1 ? kSha1 : kSha256) || value != e.digest)
        throw Error("the entry " + hex(e.digest) + " (" + e.file + ") carries another hash than its tag says");
    e.has_data = true;
}

Entry read_entry(std::string_view content, Generation generation) {
    Reader in(content);
    Entry e;
    const std::string_view tag = in.expect(octet_string_tag, "the tag of an entry").content;
    e.digest = generation == Generation::one ? unhex(ascii(tag, false)) : Bytes(tag);
    e.hash = hash_of_size(e.digest.size());
    std::string_view data;
    for (Reader attributes(in.expect(set_tag, "the attributes of an entry").content); !attributes.at_end();) {
        Reader a(attributes.expect(sequence_tag, "an attribute").content);
        const std::string type = dotted(a.expect(oid_tag, "the type of an attribute").content);
        const std::string_view value = a.expect(set_tag, "the value of an attribute").content;
        if (type == kText) {
            const Text t = read_text(value);
            if (t.name == "File") e.file = t.value;
        }
        if (type == kIndirectData) data = value;
    }
    if (!data.empty()) read_indirect_data(data, e);
    return e;
}

}  // namespace

Bytes make_catalog(Generation generation, const std::vector<Member> &members, const std::vector<std::string> &hardware_ids, int64_t when) {
    std::vector<Bytes> by_tag;  // in the order of their tags, as Windows' own tools write them
    for (const Member &m : members) {
        if (generation == Generation::two) by_tag.push_back(entry(generation, m, Hash::sha256));
        by_tag.push_back(entry(generation, m, Hash::sha1));
    }
    auto tag = [](const Bytes &e) { return Reader(Reader(e).next().content).next().content; };
    std::sort(by_tag.begin(), by_tag.end(), [&](const Bytes &a, const Bytes &b) { return tag(a) < tag(b); });
    Bytes entries;
    for (const Bytes &e : by_tag) entries += e;

    Bytes texts = sequence({oid(kText), octets(text("OS", generation == Generation::one ? kSystems1 : kSystems2))});
    for (size_t i = 0; i < hardware_ids.size(); i++)
        texts += sequence({oid(kText), octets(text("HWID" + std::to_string(i + 1), hardware_ids[i]))});

    const Bytes list = sequence({
        sequence({oid(kCatalogList)}),
        octets(digest_of(Hash::sha256, entries).substr(0, 16)),  // the same files, the same list
        utc_time(when),
        sequence({oid(generation == Generation::one ? kMembers1 : kMembers2), null()}),
        element(sequence_tag, entries),
        element(context(0, true), element(sequence_tag, texts)),
    });
    const Bytes content = sequence({oid(kTrustList), element(context(0, true), list)});
    return sequence({oid(kSignedData), element(context(0, true), sequence({integer(1), set({}), content, set({})}))});
}

Catalog Catalog::parse(const Bytes &file) {
    Catalog c;
    Reader whole(file);
    Reader outer(whole.expect(sequence_tag, "PKCS#7 content").content);
    if (!whole.at_end()) throw Error("it has bytes behind its end");
    if (dotted(outer.expect(oid_tag, "the type of the content").content) != kSignedData) throw Error("it is not PKCS#7 signed data");
    Reader data(Reader(outer.expect(context(0, true), "signed data").content).expect(sequence_tag, "signed data").content);
    data.expect(integer_tag, "the version of signed data");
    data.expect(set_tag, "the digest algorithms");
    Reader content(data.expect(sequence_tag, "the signed content").content);
    if (dotted(content.expect(oid_tag, "the type of the signed content").content) != kTrustList) throw Error("what it signs is not a catalog");
    const Element list = Reader(content.expect(context(0, true), "the list").content).expect(sequence_tag, "the list");
    c.list = Bytes(list.content);
    Element ignored;
    data.take(context(0, true), ignored);  // certificates
    data.take(context(1, true), ignored);  // revocation lists
    c.is_signed = !data.expect(set_tag, "the signatures").content.empty();

    Reader in(list.content);
    if (dotted(Reader(in.expect(sequence_tag, "the use of the list").content).expect(oid_tag, "the use of the list").content) != kCatalogList)
        throw Error("what it signs is another kind of list");
    in.expect(octet_string_tag, "the identifier of the list");
    in.expect(utc_time_tag, "the time of the list");
    const std::string kind = dotted(Reader(in.expect(sequence_tag, "the kind of members").content).expect(oid_tag, "the kind of members").content);
    if (kind != kMembers1 && kind != kMembers2) throw Error("its members are of unknown kind " + kind);
    c.generation = kind == kMembers1 ? Generation::one : Generation::two;
    for (Reader entries(in.expect(sequence_tag, "the entries").content); !entries.at_end();)
        c.entries.push_back(read_entry(entries.expect(sequence_tag, "an entry").content, c.generation));
    Element texts;
    if (in.take(context(0, true), texts)) {
        for (Reader each(Reader(texts.content).expect(sequence_tag, "the catalog's texts").content); !each.at_end();) {
            Reader t(each.expect(sequence_tag, "a text of the catalog").content);
            if (dotted(t.expect(oid_tag, "the type of a text").content) != kText) continue;
            const Text read = read_text(t.expect(octet_string_tag, "a text of the catalog").content);
            c.texts.push_back(read.name + '=' + read.value);
        }
    }
    return c;
}

}  // namespace sancat
