// SPDX-License-Identifier: GPL-2.0-or-later
// report.h: results of sanperf as tables and JSON. Documents have the members that sanperf --json writes.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

namespace lab {

// Bytes per second of memcpy in pieces of 1 MiB over buffers that cycle through 256 MiB, so that caches do not flatter.
double measure_memcpy();
// One line below sanperf's table, in its units: the best bandwidth as a part of the memcpy rate in the same document
// (nothing if it has none).
void print_ratio(std::FILE *out, const nlohmann::json &document);
// One table of all results of `sanlab run all`.
void print_table(std::FILE *out, const nlohmann::json &document);
// Throws UserError when write_json() could not write there. Nothing is changed.
void check_json_file(const std::string &file);
// "" does nothing, "-" is standard output. Throws when the file cannot be written.
void write_json(const std::string &file, const nlohmann::json &document);
// False if a result says that its data was wrong.
bool all_verified(const nlohmann::json &document);

}  // namespace lab
