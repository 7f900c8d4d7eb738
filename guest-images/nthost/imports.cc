// SPDX-License-Identifier: GPL-2.0-or-later
#include "imports.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base.h"

extern "C" void nth_record_stub();

namespace nth {

namespace {

struct Registered {
    const char *module;
    std::span<const Import> imports;
};

std::vector<Registered> &registered() {
    static std::vector<Registered> list;
    return list;
}

using Names = std::map<std::string, const void *, std::less<>>;
std::map<std::string, Names, std::less<>> g_modules;
std::vector<ImportSlot> g_slots;
uint8_t *g_thunks;
constexpr size_t THUNK_SIZE = 16;

}  // namespace

ImportTable::ImportTable(const char *module, std::span<const Import> imports) {
    registered().push_back({module, imports});
}

void prepare_imports() {
    size_t count = 0;
    for (auto &r : registered()) count += r.imports.size();
    g_slots.reserve(count);  // thunks hold addresses of its elements
    // The thunk jumps with a 32-bit displacement and loads a 32-bit address: both fit as nthost is linked low.
    size_t bytes = page_up(count * THUNK_SIZE);
    void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    if (p == MAP_FAILED) host_bug("no memory for import thunks");
    g_thunks = static_cast<uint8_t *>(p);
    uint8_t *at = g_thunks;
    for (auto &r : registered()) {
        for (const Import &i : r.imports) {
            const void *address = i.target;
            if (i.kind == ImportKind::Recorded) {
                g_slots.push_back({i.target, i.name, r.module});
                uint64_t slot = reinterpret_cast<uint64_t>(&g_slots.back());
                // mov r11, imm64 ; jmp rel32
                at[0] = 0x49;
                at[1] = 0xbb;
                memcpy(at + 2, &slot, 8);
                int64_t rel = reinterpret_cast<int64_t>(&nth_record_stub) - reinterpret_cast<int64_t>(at + 15);
                int32_t rel32 = static_cast<int32_t>(rel);
                at[10] = 0xe9;
                memcpy(at + 11, &rel32, 4);
                at[15] = 0xcc;
                address = at;
                at += THUNK_SIZE;
            }
            auto [it, fresh] = g_modules[r.module].emplace(i.name, address);
            if (!fresh) host_bug("import %s!%s is defined twice", r.module, i.name);
        }
    }
    mprotect(g_thunks, bytes, PROT_READ | PROT_EXEC);
}

static std::string module_key(std::string_view module) {
    std::string key = lower(std::string(module));
    if (key.find('.') == std::string::npos) key += ".dll";
    return key;
}

bool is_builtin_module(std::string_view module) {
    return g_modules.contains(module_key(module));
}

const void *find_import(std::string_view module, std::string_view name) {
    auto m = g_modules.find(module_key(module));
    if (m == g_modules.end()) return nullptr;
    auto i = m->second.find(name);
    return i == m->second.end() ? nullptr : i->second;
}

std::vector<std::string> list_imports() {
    std::vector<std::string> out;
    for (auto &[module, names] : g_modules)
        for (auto &[name, address] : names) out.push_back(module + "!" + name);
    return out;
}

const ImportSlot *import_of_thunk(uint64_t address) {
    uint64_t offset = address - reinterpret_cast<uint64_t>(g_thunks);
    if (offset >= g_slots.size() * THUNK_SIZE) return nullptr;
    return &g_slots[offset / THUNK_SIZE];
}

}  // namespace nth
