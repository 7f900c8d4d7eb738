// SPDX-License-Identifier: GPL-2.0-or-later
// sancat: makes the catalog of a Windows driver package (still unsigned: osslsigncode signs it) and checks one against its files.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "catalog.h"
#include "inf.h"
#include "signature.h"

namespace sancat {

namespace {

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
}

int64_t now() {
    const char *fixed = std::getenv("SOURCE_DATE_EPOCH");
    return fixed && *fixed ? std::strtoll(fixed, nullptr, 10) : static_cast<int64_t>(std::time(nullptr));
}

int make(const std::string &inf_path, const std::string &out, Generation generation) {
    const Inf inf = Inf::read(inf_path);
    if (lower(base_name(out)) != lower(inf.catalog))
        throw Error(inf_path + " names its catalog " + inf.catalog + "; " + base_name(out) + " would not be found");
    const std::string folder = inf_path.substr(0, inf_path.size() - base_name(inf_path).size());
    std::vector<Member> members = {read_member(inf_path)};
    for (const std::string &file : inf.files) members.push_back(read_member(folder + file));
    const Bytes catalog = make_catalog(generation, members, inf.hardware_ids, now());
    std::ofstream to(out, std::ios::binary);
    to.write(catalog.data(), static_cast<std::streamsize>(catalog.size()));
    if (!to.flush()) throw Error("cannot write " + out);
    return 0;
}

Catalog load(const std::string &path, Bytes &file) {
    file = read_file(path);
    try {
        return Catalog::parse(file);
    } catch (const Error &e) {
        throw Error(path + ": not a catalog, or a damaged one: " + e.what());
    }
}

int show(const std::string &path) {
    Bytes file;
    const Catalog c = load(path, file);
    std::printf("generation %d, %s\n", static_cast<int>(c.generation), c.is_signed ? "signed" : "not signed");
    for (const Entry &e : c.entries)
        std::printf("%-6s %s %s %s\n", hash_name(e.hash), hex(e.digest).c_str(), !e.has_data ? "tag" : e.pe ? "PE" : "file", e.file.c_str());
    for (const std::string &text : c.texts) std::printf("%s\n", text.c_str());
    return 0;
}

// All that is wrong, not only the first thing.
int verify(const std::string &path, const std::vector<std::string> &files, const std::string &certificate) {
    Bytes file;
    const Catalog c = load(path, file);
    const Hash hash = c.generation == Generation::one ? Hash::sha1 : Hash::sha256;
    int wrong = 0;
    auto complain = [&](const std::string &what) {
        std::fprintf(stderr, "sancat: %s: %s\n", path.c_str(), what.c_str());
        wrong++;
    };
    std::vector<bool> seen(c.entries.size());
    for (const std::string &name : files) {
        const Member m = read_member(name);
        bool found = false;
        for (size_t i = 0; i < c.entries.size(); i++) {
            const Entry &e = c.entries[i];
            if (e.digest != m.digest(e.hash) || (e.has_data && e.pe != m.pe)) continue;
            seen[i] = true;
            found = found || (e.hash == hash && e.has_data);
        }
        if (!found) complain(name + " is not the file that was listed: its hash " + hex(m.digest(hash)) + " has no entry");
    }
    for (size_t i = 0; i < seen.size(); i++)
        if (!seen[i])
            complain(std::string("lists ") + c.entries[i].file + " with " + hash_name(c.entries[i].hash) + ' ' + hex(c.entries[i].digest) +
                     "; none of the files given has it");
    if (!certificate.empty()) {
        try {
            check_signature(file, c, certificate);
        } catch (const Error &e) {
            complain(e.what());
        }
    }
    if (!wrong)
        std::printf("%s: %zu files, %s\n", path.c_str(), files.size(), certificate.empty() ? "signature not looked at" : "signature good");
    return wrong ? 1 : 0;
}

int print_hash(const std::vector<std::string> &files, Hash hash) {
    for (const std::string &name : files) std::printf("%s  %s\n", hex(read_member(name).digest(hash)).c_str(), name.c_str());
    return 0;
}

}  // namespace

}  // namespace sancat

int main(int argc, char **argv) {
    using namespace sancat;
    CLI::App app{"sancat: catalogs (.cat) of Windows driver packages"};
    app.require_subcommand(1);
    std::string inf, out, catalog, certificate, hash = "sha256";
    int generation = 2;
    std::vector<std::string> files;

    auto *make_cmd = app.add_subcommand("make", "make the unsigned catalog of an INF and the files that it names, which lie beside it");
    make_cmd->add_option("inf", inf, "the INF")->required();
    make_cmd->add_option("out", out, "the catalog to write; the name that the INF gives it")->required();
    make_cmd->add_option("--generation", generation, "1: SHA-1, every Windows; 2: SHA-256, Windows 8 and later")
        ->check(CLI::IsMember({1, 2}))->capture_default_str();

    auto *show_cmd = app.add_subcommand("show", "list what a catalog holds");
    show_cmd->add_option("catalog", catalog)->required();

    auto *verify_cmd = app.add_subcommand("verify", "is each file listed, each entry one of the files, and who signed it?");
    verify_cmd->add_option("--certificate", certificate, "the certificate (PEM or DER) that must have signed it; without it the signature is not looked at");
    verify_cmd->add_option("catalog", catalog)->required();
    verify_cmd->add_option("files", files, "all files of the package that the catalog lists")->required();

    auto *hash_cmd = app.add_subcommand("hash", "print the hash under which a catalog knows a file");
    hash_cmd->add_option("--hash", hash, "sha1 or sha256")->check(CLI::IsMember({"sha1", "sha256"}))->capture_default_str();
    hash_cmd->add_option("files", files)->required();

    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &e) {
        return app.exit(e) ? 2 : 0;
    }
    try {
        if (*make_cmd) return make(inf, out, generation == 1 ? Generation::one : Generation::two);
        if (*show_cmd) return show(catalog);
        if (*verify_cmd) return verify(catalog, files, certificate);
        return print_hash(files, hash == "sha1" ? Hash::sha1 : Hash::sha256);
    } catch (const Error &e) {
        std::fprintf(stderr, "sancat: %s\n", e.what());
        return 1;
    }
}
