// SPDX-License-Identifier: GPL-2.0-or-later
#include "pe_image.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>

#include "address_space.h"
#include "debug_hook.h"

namespace nth {

using namespace nt;

namespace {

struct FileHeader {
    uint16_t Machine, Sections;
    uint32_t TimeDateStamp, Symbols, SymbolCount;
    uint16_t OptionalSize, Characteristics;
};

struct DataDirectory {
    uint32_t Rva, Size;
};

struct OptionalHeader64 {
    uint16_t Magic;
    uint8_t LinkerMajor, LinkerMinor;
    uint32_t SizeOfCode, SizeOfData, SizeOfBss, Entry, BaseOfCode;
    uint64_t ImageBase;
    uint32_t SectionAlignment, FileAlignment;
    uint16_t OsMajor, OsMinor, ImageMajor, ImageMinor, SubsystemMajor, SubsystemMinor;
    uint32_t Win32Version, SizeOfImage, SizeOfHeaders, CheckSum;
    uint16_t Subsystem, DllCharacteristics;
    uint64_t StackReserve, StackCommit, HeapReserve, HeapCommit;
    uint32_t LoaderFlags, Directories;
    DataDirectory Directory[16];
};
static_assert(sizeof(OptionalHeader64) == 240);

struct SectionHeader {
    char Name[8];
    uint32_t VirtualSize, VirtualAddress, RawSize, RawOffset, Relocs, Lines;
    uint16_t RelocCount, LineCount;
    uint32_t Characteristics;
};
static_assert(sizeof(SectionHeader) == 40);

struct ExportDirectory {
    uint32_t Flags, TimeDateStamp, Version, Name, OrdinalBase, Functions, Names, AddressOfFunctions, AddressOfNames,
        AddressOfOrdinals;
};

enum { DirExport = 0, DirImport = 1, DirException = 3, DirReloc = 5, DirTls = 9 };

constexpr unsigned MAX_IMAGES = 128;
std::atomic<Image *> g_images[MAX_IMAGES];

// View of the file with checked access.
struct File {
    std::vector<uint8_t> bytes;
    template <class T>
    const T *get(uint64_t offset, uint64_t count = 1) const {
        if (offset > bytes.size() || count * sizeof(T) > bytes.size() - offset) return nullptr;
        return reinterpret_cast<const T *>(bytes.data() + offset);
    }
};

struct Parsed {
    File file;
    const FileHeader *header = nullptr;
    const OptionalHeader64 *optional = nullptr;
    const SectionHeader *sections = nullptr;
    DataDirectory dir(unsigned i) const {
        return i < optional->Directories && i < 16 ? optional->Directory[i] : DataDirectory{0, 0};
    }
};

bool parse(Parsed &p, const std::string &path, std::string *error) {
    struct stat st;
    std::ifstream in(path, std::ios::binary);
    if (!in || stat(path.c_str(), &st) != 0) {
        *error = "cannot open " + path;
        return false;
    }
    if (!S_ISREG(st.st_mode)) {  // a folder opens; reading it throws
        *error = path + " is not a file";
        return false;
    }
    p.file.bytes.assign(std::istreambuf_iterator<char>(in), {});
    auto *mz = p.file.get<uint8_t>(0, 64);
    uint32_t pe = 0;
    if (mz != nullptr && mz[0] == 'M' && mz[1] == 'Z') memcpy(&pe, mz + 0x3c, 4);
    auto *signature = pe != 0 ? p.file.get<uint32_t>(pe) : nullptr;
    if (signature == nullptr || *signature != 0x4550) {
        *error = path + " is not a PE file";
        return false;
    }
    p.header = p.file.get<FileHeader>(pe + 4);
    p.optional = p.file.get<OptionalHeader64>(uint64_t{pe} + 24);
    if (p.header == nullptr || p.optional == nullptr || p.header->Machine != 0x8664 || p.optional->Magic != 0x20b) {
        *error = path + " is not an x64 PE file";
        return false;
    }
    p.sections = p.file.get<SectionHeader>(uint64_t{pe} + 24 + p.header->OptionalSize, p.header->Sections);
    uint64_t size = p.optional->SizeOfImage;
    if (p.sections == nullptr || size == 0 || size > (256u << 20) || p.optional->SizeOfHeaders > size ||
        p.optional->SizeOfHeaders > p.file.bytes.size() || p.optional->SectionAlignment < 4096) {
        *error = path + ": headers are not consistent";
        return false;
    }
    for (unsigned i = 0; i < p.header->Sections; i++) {
        const SectionHeader &s = p.sections[i];
        uint64_t span = std::max(s.VirtualSize, s.RawSize);
        if (s.VirtualAddress > size || span > page_up(size) - s.VirtualAddress ||
            (s.RawSize != 0 && p.file.get<uint8_t>(s.RawOffset, s.RawSize) == nullptr)) {
            *error = path + ": section " + std::to_string(i) + " lies outside the file or the image";
            return false;
        }
    }
    for (unsigned i = 0; i < 16; i++) {
        DataDirectory d = p.dir(i);
        if (i != 4 && (d.Rva > size || d.Size > size - d.Rva)) {  // 4: certificates, a file offset
            *error = path + ": data directory " + std::to_string(i) + " lies outside the image";
            return false;
        }
    }
    return true;
}

bool relocate(const Image &image, DataDirectory relocs, uint64_t delta) {
    uint64_t at = relocs.Rva, end = uint64_t{relocs.Rva} + relocs.Size;
    while (at + 8 <= end) {
        auto *block = image.at<uint32_t>(at);
        uint32_t page = block[0], size = block[1];
        if (size < 8 || at + size > end) return false;
        auto *entry = image.at<uint16_t>(at + 8);
        for (uint32_t i = 0; i < (size - 8) / 2; i++) {
            unsigned type = entry[i] >> 12;
            uint64_t rva = uint64_t{page} + (entry[i] & 0xfff);
            if (type == 0) continue;
            if (type != 10 || rva + 8 > image.size) return false;  // DIR64 only
            uint64_t v;
            memcpy(&v, image.at<void>(rva), 8);
            v += delta;
            memcpy(image.at<void>(rva), &v, 8);
        }
        at += size;
    }
    return true;
}

bool read_exports(Image &image, DataDirectory d) {
    if (d.Size < sizeof(ExportDirectory)) return true;
    auto *e = image.at<ExportDirectory>(d.Rva);
    auto fits = [&](uint64_t rva, uint64_t count, uint64_t size) {
        return rva <= image.size && count <= 65536 && count * size <= image.size - rva;
    };
    if (!fits(e->AddressOfFunctions, e->Functions, 4) || !fits(e->AddressOfNames, e->Names, 4) ||
        !fits(e->AddressOfOrdinals, e->Names, 2))
        return false;
    auto *functions = image.at<uint32_t>(e->AddressOfFunctions);
    auto *names = image.at<uint32_t>(e->AddressOfNames);
    auto *ordinals = image.at<uint16_t>(e->AddressOfOrdinals);
    for (uint32_t i = 0; i < e->Names; i++) {
        if (names[i] >= image.size || ordinals[i] >= e->Functions || functions[ordinals[i]] >= image.size) return false;
        uint32_t rva = functions[ordinals[i]];
        if (rva >= d.Rva && rva < d.Rva + d.Size) image.forwards.push_back(image.at<char>(names[i]));
        else image.exports[image.at<char>(names[i])] = rva;
    }
    return true;
}

}  // namespace

Image *map_image(AddressSpace &space, const std::string &path, Process *owner, std::string *error) {
    Parsed p;
    if (!parse(p, path, error)) return nullptr;
    auto image = std::make_unique<Image>();
    image->path = path;
    image->name = path.substr(path.find_last_of('/') + 1);
    image->size = page_up(p.optional->SizeOfImage);
    image->preferred = p.optional->ImageBase;
    image->owner = owner;
    image->is_driver = owner == nullptr;
    image->is_dll = (p.header->Characteristics & 0x2000) != 0;
    image->subsystem = p.optional->Subsystem;
    image->stack_reserve = p.optional->StackReserve;

    if (owner == nullptr) {
        image->base = space.allocate_kernel_image(image->size);
    } else {
        uint64_t at = image->preferred, size = image->size;
        NTSTATUS s =
            space.allocate(owner, &at, &size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE, AddressSpace::Kind::Image);
        if (!nt_success(s)) {
            at = 0;
            size = image->size;
            s = space.allocate(owner, &at, &size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE, AddressSpace::Kind::Image);
        }
        if (!nt_success(s)) {
            *error = path + ": not enough memory for the image";
            return nullptr;
        }
        image->base = at;
    }
    memcpy(image->at<void>(0), p.file.bytes.data(), p.optional->SizeOfHeaders);
    for (unsigned i = 0; i < p.header->Sections; i++) {
        const SectionHeader &s = p.sections[i];
        uint64_t n = s.VirtualSize != 0 ? std::min(s.RawSize, s.VirtualSize) : s.RawSize;
        memcpy(image->at<void>(s.VirtualAddress), p.file.bytes.data() + s.RawOffset, n);
    }
    uint64_t delta = image->base - image->preferred;
    bool stripped = (p.header->Characteristics & 1) != 0;
    auto fail = [&](const char *why) -> Image * {
        *error = path + ": " + why;
        uint64_t at = image->base, size = 0;
        space.free(owner, &at, &size, MEM_RELEASE);
        return nullptr;
    };
    if (delta != 0 && stripped) return fail("has no relocations and its address is taken");
    if (delta != 0 && !relocate(*image, p.dir(DirReloc), delta)) return fail("relocations are damaged");
    if (!read_exports(*image, p.dir(DirExport))) return fail("the export directory is damaged");
    image->import_rva = p.dir(DirImport).Rva;
    image->import_size = p.dir(DirImport).Size;
    image->export_rva = p.dir(DirExport).Rva;
    image->tls_rva = p.dir(DirTls).Size >= 40 ? p.dir(DirTls).Rva : 0;
    image->entry = p.optional->Entry != 0 ? image->base + p.optional->Entry : 0;
    image->functions = image->at<RUNTIME_FUNCTION>(p.dir(DirException).Rva);
    image->function_count = p.dir(DirException).Size / sizeof(RUNTIME_FUNCTION);
    for (auto &slot : g_images) {
        Image *expected = nullptr;
        if (slot.compare_exchange_strong(expected, image.get())) {
            nthost_image_loaded(image->path.c_str(), image->base, image->preferred);
            return image.release();
        }
    }
    return fail("too many images");
}

void protect_image(AddressSpace &space, Image &image) {
    auto *pe = image.at<uint8_t>(*image.at<uint32_t>(0x3c));
    auto *header = reinterpret_cast<FileHeader *>(pe + 4);
    auto *section = reinterpret_cast<SectionHeader *>(pe + 24 + header->OptionalSize);
    unsigned count = header->Sections;
    auto set = [&](uint64_t rva, uint64_t size, uint32_t protection) {
        uint64_t at = image.base + rva, n = size;
        uint32_t old;
        if (n != 0) space.protect(image.owner, &at, &n, protection, &old);
    };
    for (unsigned i = 0; i < count; i++) {
        uint32_t c = section[i].Characteristics;
        bool x = c & 0x20000000, w = c & 0x80000000;
        set(section[i].VirtualAddress, std::max(section[i].VirtualSize, section[i].RawSize),
            x ? (w ? PAGE_EXECUTE_READWRITE : PAGE_EXECUTE_READ) : (w ? PAGE_READWRITE : PAGE_READONLY));
    }
    set(0, 4096, PAGE_READONLY);
}

void unmap_image(AddressSpace &space, Image *image) {
    for (auto &slot : g_images) {
        Image *expected = image;
        if (slot.compare_exchange_strong(expected, nullptr)) break;
    }
    uint64_t at = image->base, size = 0;
    space.free(image->owner, &at, &size, MEM_RELEASE);
    delete image;
}

Image *image_of(uint64_t address) {
    for (auto &slot : g_images) {
        Image *i = slot.load(std::memory_order_acquire);
        if (i != nullptr && i->contains(address)) return i;
    }
    return nullptr;
}

std::vector<Image *> images_of(Process *owner) {
    std::vector<Image *> out;
    for (auto &slot : g_images)
        if (Image *i = slot.load(); i != nullptr && i->owner == owner) out.push_back(i);
    return out;
}

uint64_t find_export(const Image &image, std::string_view name) {
    auto it = image.exports.find(name);
    return it == image.exports.end() ? 0 : image.base + it->second;
}

std::vector<std::string> imported_modules(const Image &image) {
    std::vector<std::string> out;
    if (image.import_rva == 0) return out;
    for (auto *d = image.at<ImportDescriptor>(image.import_rva); d->Name != 0 && d->Name < image.size; d++)
        out.push_back(image.at<char>(d->Name));
    return out;
}

RUNTIME_FUNCTION *find_function(const Image &image, uint64_t address) {
    uint32_t rva = static_cast<uint32_t>(address - image.base);
    auto *end = image.functions + image.function_count;
    auto *f =
        std::upper_bound(image.functions, end, rva, [](uint32_t r, const RUNTIME_FUNCTION &e) { return r < e.Begin; });
    if (f == image.functions) return nullptr;
    f--;
    return rva < f->End ? f : nullptr;
}

}  // namespace nth
