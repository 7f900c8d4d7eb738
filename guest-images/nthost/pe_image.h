// SPDX-License-Identifier: GPL-2.0-or-later
//
// pe_image.h: x64 PE files: checking, mapping, relocation, imports, exports, TLS directory, unwind data.
//
// Contract: the file's headers are untrusted (every offset is checked against the file and the image); a mapped image
// is listed in a table that may be searched from a signal handler. Imports that neither nthost nor a DLL on the search
// path supplies are collected, never skipped.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nt_types.h"

namespace nth {

class AddressSpace;
class Process;

inline constexpr uint32_t SUBSYSTEM_NATIVE = 1;  // drivers

struct Image {
    std::string name;  // file name as given, without directory
    std::string path;
    uint64_t base = 0, size = 0, preferred = 0, entry = 0;
    uint64_t stack_reserve = 0;
    bool is_dll = false, is_driver = false;
    uint32_t subsystem = 0;
    Process *owner = nullptr;
    nt::RUNTIME_FUNCTION *functions = nullptr;
    uint32_t function_count = 0;
    uint64_t import_rva = 0, import_size = 0;
    uint64_t export_rva = 0, export_size = 0;
    uint64_t tls_rva = 0;
    int tls_index = -1;
    bool attached = false;  // DllMain(PROCESS_ATTACH) succeeded
    int references = 1;
    std::map<std::string, uint32_t, std::less<>> exports;  // name -> rva
    std::vector<std::string> forwards;                     // "name -> module.name": reported when asked for

    template <class T>
    T *at(uint64_t rva) const {
        return reinterpret_cast<T *>(base + rva);
    }
    bool contains(uint64_t address) const { return address - base < size; }
};

// Maps the file. owner nullptr: a driver, into kernel memory. Null: *error says why.
Image *map_image(AddressSpace &space, const std::string &path, Process *owner, std::string *error);
void unmap_image(AddressSpace &space, Image *image);

// Image that contains the address, or nullptr. Safe in signal handlers.
Image *image_of(uint64_t address);
std::vector<Image *> images_of(Process *owner);

// Exported address, or 0.
uint64_t find_export(const Image &image, std::string_view name);

// Modules named in the import directory.
std::vector<std::string> imported_modules(const Image &image);
// Fills the import tables. resolve(module, name) returns 0 for what is missing, which is then listed in *missing as
// "module!name" (ordinals as "module!#n").
template <class Resolve>
void bind_imports(const Image &image, Resolve &&resolve, std::vector<std::string> *missing);

// Sets the sections' final protections; after binding.
void protect_image(AddressSpace &space, Image &image);

// Function table entry for an address within the image, or nullptr (leaf).
nt::RUNTIME_FUNCTION *find_function(const Image &image, uint64_t address);

struct ImportDescriptor {
    uint32_t OriginalFirstThunk, TimeDateStamp, ForwarderChain, Name, FirstThunk;
};

template <class Resolve>
void bind_imports(const Image &image, Resolve &&resolve, std::vector<std::string> *missing) {
    if (image.import_rva == 0) return;
    for (auto *d = image.at<ImportDescriptor>(image.import_rva); d->Name != 0; d++) {
        if (d->Name >= image.size || d->FirstThunk >= image.size) return;
        std::string module = image.at<char>(d->Name);
        auto *name = image.at<uint64_t>(d->OriginalFirstThunk != 0 ? d->OriginalFirstThunk : d->FirstThunk);
        auto *slot = image.at<uint64_t>(d->FirstThunk);
        for (; *name != 0; name++, slot++) {
            std::string symbol =
                *name >> 63 ? "#" + std::to_string(*name & 0xffff) : image.at<char>((*name & 0x7fffffff) + 2);
            uint64_t address = resolve(module, symbol);
            if (address == 0) missing->push_back(module + "!" + symbol);
            else *slot = address;
        }
    }
}

}  // namespace nth
