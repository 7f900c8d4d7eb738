// SPDX-License-Identifier: GPL-2.0-or-later
//
// imports.h: the names that nthost supplies to PE files.
//
// Each source file that implements imports ends in a table and a registration line:
//     static const Import table[] = {FN(KeSetEvent), LEAF(memcpy, nth_ms_memmove), DATA(MmUserProbeAddress)};
//     static const ImportTable registered("ntoskrnl.exe", table);
// FN is called through the record stub (thunk.S), so that it may raise exceptions and call back into PE code. LEAF is
// entered directly: for functions that do neither. DATA is the address of a variable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nth {

enum class ImportKind : uint8_t { Recorded, Leaf, Data };

struct Import {
    const char *name;
    const void *target;
    ImportKind kind;
};

// What the record stub finds in r11; target must stay first (thunk.S).
struct ImportSlot {
    const void *target;
    const char *name;
    const char *module;
};

class ImportTable {
  public:
    template <size_t N>
    ImportTable(const char *module, const Import (&imports)[N]) : ImportTable(module, std::span(imports, N)) {}
    ImportTable(const char *module, std::span<const Import> imports);
};

// Sorts the tables and makes the thunks. Once, before anything is loaded.
void prepare_imports();
// Whether `module` (any case) is one that nthost stands for.
bool is_builtin_module(std::string_view module);
// Address to put into an import table or to return from GetProcAddress; nullptr: not supplied.
const void *find_import(std::string_view module, std::string_view name);
// "module!name" of everything, sorted.
std::vector<std::string> list_imports();
// Name of the import whose thunk contains the address, for stack traces; nullptr: none.
const ImportSlot *import_of_thunk(uint64_t address);

#define FN(name) \
    { #name, reinterpret_cast < const void *>(&name), ::nth::ImportKind::Recorded }
#define FN_AS(name, function) \
    { name, reinterpret_cast<const void *>(&function), ::nth::ImportKind::Recorded }
#define LEAF(name) \
    { #name, reinterpret_cast < const void *>(&name), ::nth::ImportKind::Leaf }
#define LEAF_AS(name, function) \
    { name, reinterpret_cast<const void *>(&function), ::nth::ImportKind::Leaf }
#define DATA(name) \
    { #name, &name, ::nth::ImportKind::Data }
#define DATA_AS(name, variable) \
    { name, &variable, ::nth::ImportKind::Data }

}  // namespace nth
