// SPDX-License-Identifier: GPL-2.0-or-later
//
// advapi32.dll: the machine's registry with the two views of 64-bit Windows, the service entries in it, random numbers. Access rights are
// not looked at: whoever runs nthost is administrator. --fail registry makes registry calls fail, --fail driver those to services.
#include <unistd.h>

#include <cstring>

#include "imports.h"
#include "registry.h"
#include "user.h"
#include "verifier.h"

namespace nth {

using namespace nt;

namespace {

constexpr DWORD NO_MORE_ITEMS = 259, NO_SYSTEM_RESOURCES = 1450, SERVICE_DOES_NOT_EXIST = 1060, SERVICE_EXISTS = 1073;
constexpr DWORD WOW64_32KEY = 0x200;
constexpr const char *SERVICES_KEY = "\\Registry\\Machine\\System\\CurrentControlSet\\Services";

std::string hive_path(uint64_t key) {
    switch (static_cast<uint32_t>(key)) {
        case 0x80000002: return MACHINE_KEY;
        case 0x80000001: return "\\Registry\\User\\Current";
        default: return "";
    }
}
struct UserKey {
    std::string path;
};
std::string path_of(uint64_t key) {
    std::string p = hive_path(key);
    if (!p.empty()) return p;
    auto k = user_object<UserKey>(key, ObjectKind::Key);
    return k ? k->path : "";
}

// 32-bit programs have a Software key of their own; all else is shared.
std::string in_view(const std::string &path, DWORD access) {
    const std::string software = std::string(MACHINE_KEY) + "\\Software", own = software + "\\Wow6432Node";
    if ((access & WOW64_32KEY) == 0 || lower(path).rfind(lower(software), 0) != 0) return path;
    if (path.size() > software.size() && path[software.size()] != '\\') return path;
    if (lower(path).rfind(lower(own), 0) == 0) return path;
    return own + path.substr(software.size());
}
// Full path; empty: no such handle.
std::string full_path(uint64_t key, const std::string &name, DWORD access) {
    std::string path = path_of(key);
    if (path.empty()) return path;
    if (!name.empty()) path += "\\" + name;
    while (path.back() == '\\') path.pop_back();
    return in_view(path, access);
}
std::string text_or_empty(const WCHAR *s) {
    return s != nullptr ? narrow_z(s) : "";
}

uint64_t key_handle(const std::string &path) {
    auto *k = object_create<UserKey>(ObjectKind::Key);
    if (k == nullptr) return 0;
    k->path = path;
    uint64_t h = current()->process->handles.insert(k);
    object_release(k);
    return h;
}

LONG open_key(uint64_t key, const std::string &name, DWORD access, uint64_t *out) {
    if (should_fail(Fail::Registry)) return NO_SYSTEM_RESOURCES;
    std::string path = full_path(key, name, access);
    if (path.empty()) return ERROR_INVALID_HANDLE;
    if (!registry().has_key(path)) return ERROR_FILE_NOT_FOUND;
    *out = key_handle(path);
    return *out != 0 ? LONG{0} : LONG{ERROR_NOT_ENOUGH_MEMORY};
}
LONG NTAPI RegOpenKeyExA(uint64_t key, const char *name, DWORD, DWORD access, uint64_t *out) {
    return open_key(key, name != nullptr ? name : "", access, out);
}
LONG NTAPI RegOpenKeyExW(uint64_t key, const WCHAR *name, DWORD, DWORD access, uint64_t *out) {
    return open_key(key, text_or_empty(name), access, out);
}
LONG NTAPI RegCreateKeyExW(uint64_t key, const WCHAR *name, DWORD, const WCHAR *key_class, DWORD, DWORD access, void *,
                           uint64_t *out, DWORD *disposition) {
    if (should_fail(Fail::Registry)) return NO_SYSTEM_RESOURCES;
    std::string path = full_path(key, text_or_empty(name), access);
    if (path.empty()) return ERROR_INVALID_HANDLE;
    bool fresh = registry().create_key(path, text_or_empty(key_class));
    if (disposition != nullptr) *disposition = fresh ? 1 : 2;
    *out = key_handle(path);
    return *out != 0 ? LONG{0} : LONG{ERROR_NOT_ENOUGH_MEMORY};
}

LONG give_value(const RegistryValue &v, DWORD *type, uint8_t *out, DWORD *size) {
    if (type != nullptr) *type = v.type;
    DWORD have = size != nullptr ? *size : 0;
    if (size != nullptr) *size = static_cast<DWORD>(v.data.size());
    if (out == nullptr) return 0;
    if (have < v.data.size()) return ERROR_MORE_DATA;
    memcpy(out, v.data.data(), v.data.size());
    return 0;
}
LONG NTAPI RegQueryValueExA(uint64_t key, const char *name, DWORD *, DWORD *type, uint8_t *out, DWORD *size) {
    if (should_fail(Fail::Registry)) return NO_SYSTEM_RESOURCES;
    RegistryValue v;
    if (!registry().query(path_of(key), name != nullptr ? name : "", &v)) return ERROR_FILE_NOT_FOUND;
    if (v.type == 1) {
        std::string s = narrow_z(reinterpret_cast<const WCHAR *>(v.data.data()));
        v.data.assign(s.begin(), s.end());
        v.data.push_back(0);
    }
    return give_value(v, type, out, size);
}
LONG NTAPI RegQueryValueExW(uint64_t key, const WCHAR *name, DWORD *, DWORD *type, uint8_t *out, DWORD *size) {
    if (should_fail(Fail::Registry)) return NO_SYSTEM_RESOURCES;
    std::string path = path_of(key);
    if (path.empty()) return ERROR_INVALID_HANDLE;
    RegistryValue v;
    if (!registry().query(path, text_or_empty(name), &v)) return ERROR_FILE_NOT_FOUND;
    return give_value(v, type, out, size);
}
LONG NTAPI RegSetValueExW(uint64_t key, const WCHAR *name, DWORD, DWORD type, const uint8_t *data, DWORD size) {
    if (should_fail(Fail::Registry)) return NO_SYSTEM_RESOURCES;
    std::string path = path_of(key);
    if (path.empty()) return ERROR_INVALID_HANDLE;
    if (!registry().has_key(path)) return 1018;  // the key has been deleted
    registry().set(path, text_or_empty(name), {type, std::vector<uint8_t>(data, data + size)});
    return 0;
}
LONG NTAPI RegDeleteValueW(uint64_t key, const WCHAR *name) {
    if (should_fail(Fail::Registry)) return NO_SYSTEM_RESOURCES;
    std::string path = path_of(key);
    if (path.empty()) return ERROR_INVALID_HANDLE;
    return registry().remove_value(path, text_or_empty(name)) ? LONG{0} : LONG{ERROR_FILE_NOT_FOUND};
}
LONG delete_key(uint64_t key, const WCHAR *name, DWORD access) {
    if (should_fail(Fail::Registry)) return NO_SYSTEM_RESOURCES;
    std::string path = full_path(key, text_or_empty(name), access);
    if (path.empty() || name == nullptr) return ERROR_INVALID_HANDLE;
    switch (registry().remove_key(path)) {
        case Registry::Removed::Yes: return 0;
        case Registry::Removed::NoSuchKey: return ERROR_FILE_NOT_FOUND;
        case Registry::Removed::HasSubkeys: break;
    }
    return ERROR_ACCESS_DENIED;
}
LONG NTAPI RegDeleteKeyW(uint64_t key, const WCHAR *name) {
    return delete_key(key, name, 0);
}
LONG NTAPI RegDeleteKeyExW(uint64_t key, const WCHAR *name, DWORD access, DWORD) {
    return delete_key(key, name, access);
}

// Text with its terminator into a buffer of *length characters; afterwards *length is without it.
LONG give_text(const std::string &text, WCHAR *out, DWORD *length) {
    std::u16string w = widen(text);
    if (*length <= w.size()) return ERROR_MORE_DATA;
    memcpy(out, w.c_str(), w.size() * 2 + 2);
    *length = static_cast<DWORD>(w.size());
    return 0;
}
LONG NTAPI RegEnumKeyExW(uint64_t key, DWORD index, WCHAR *name, DWORD *length, DWORD *, WCHAR *, DWORD *, uint64_t *time) {
    if (should_fail(Fail::Registry)) return NO_SYSTEM_RESOURCES;
    std::string path = path_of(key);
    if (path.empty()) return ERROR_INVALID_HANDLE;
    std::vector<std::string> names = registry().subkeys(path);
    if (index >= names.size()) return NO_MORE_ITEMS;
    if (time != nullptr) memset(time, 0, 8);
    return give_text(names[index], name, length);
}
LONG NTAPI RegEnumValueW(uint64_t key, DWORD index, WCHAR *name, DWORD *length, DWORD *, DWORD *type, uint8_t *out, DWORD *size) {
    if (should_fail(Fail::Registry)) return NO_SYSTEM_RESOURCES;
    auto k = registry().key(path_of(key));
    if (!k) return ERROR_INVALID_HANDLE;
    if (index >= k->values.size()) return NO_MORE_ITEMS;
    LONG e = give_text(k->values[index].name, name, length);
    return e != 0 ? e : give_value(k->values[index].value, type, out, size);
}
LONG NTAPI RegQueryInfoKeyW(uint64_t key, WCHAR *key_class, DWORD *class_length, DWORD *, DWORD *subkeys, DWORD *, DWORD *,
                            DWORD *values, DWORD *, DWORD *, DWORD *, uint64_t *) {
    if (should_fail(Fail::Registry)) return NO_SYSTEM_RESOURCES;
    std::string path = path_of(key);
    auto k = registry().key(path);
    if (!k) return ERROR_INVALID_HANDLE;
    if (subkeys != nullptr) *subkeys = static_cast<DWORD>(registry().subkeys(path).size());
    if (values != nullptr) *values = static_cast<DWORD>(k->values.size());
    return key_class != nullptr && class_length != nullptr ? give_text(k->key_class, key_class, class_length) : LONG{0};
}
LONG NTAPI RegCloseKey(uint64_t key) {
    if (!hive_path(key).empty()) return 0;
    return nt_success(current()->process->handles.close(key, current()->process)) ? LONG{0} : LONG{ERROR_INVALID_HANDLE};
}

// ---- services: only their entries; nthost starts none
uint64_t NTAPI OpenSCManagerW(const WCHAR *, const WCHAR *, DWORD) {
    if (should_fail(Fail::Driver)) return fail(NO_SYSTEM_RESOURCES);
    return key_handle(SERVICES_KEY);
}
uint64_t NTAPI OpenServiceW(uint64_t manager, const WCHAR *name, DWORD) {
    if (should_fail(Fail::Driver)) return fail(NO_SYSTEM_RESOURCES);
    std::string path = full_path(manager, text_or_empty(name), 0);
    if (path.empty()) return fail(ERROR_INVALID_HANDLE);
    if (!registry().has_key(path)) return fail(SERVICE_DOES_NOT_EXIST);
    return key_handle(path);
}
void set_number(const std::string &key, const char *name, DWORD value) {
    RegistryValue v{4, std::vector<uint8_t>(4)};
    memcpy(v.data.data(), &value, 4);
    registry().set(key, name, v);
}
void set_text(const std::string &key, const char *name, DWORD type, const std::string &text) {
    std::u16string w = widen(text);
    auto *p = reinterpret_cast<const uint8_t *>(w.c_str());
    registry().set(key, name, {type, std::vector<uint8_t>(p, p + w.size() * 2 + 2)});
}

}  // namespace

bool add_service_entry(const std::string &name, const std::string &text, DWORD type, DWORD start, DWORD error_control,
                       const std::string &image) {
    std::string path = std::string(SERVICES_KEY) + "\\" + name;
    bool fresh = registry().create_key(path);
    set_number(path, "Type", type);
    set_number(path, "Start", start);
    set_number(path, "ErrorControl", error_control);
    set_text(path, "ImagePath", 2, image);
    if (!text.empty()) set_text(path, "DisplayName", 1, text);
    return fresh;
}

namespace {

uint64_t NTAPI CreateServiceW(uint64_t manager, const WCHAR *name, const WCHAR *text, DWORD, DWORD type, DWORD start,
                              DWORD error_control, const WCHAR *image, const WCHAR *, DWORD *, const WCHAR *, const WCHAR *,
                              const WCHAR *) {
    if (should_fail(Fail::Driver)) return fail(NO_SYSTEM_RESOURCES);
    std::string path = full_path(manager, text_or_empty(name), 0);
    if (path.empty()) return fail(ERROR_INVALID_HANDLE);
    if (registry().has_key(path)) return fail(SERVICE_EXISTS);
    add_service_entry(narrow_z(name), text_or_empty(text), type, start, error_control, text_or_empty(image));
    return key_handle(path);
}
BOOL NTAPI DeleteService(uint64_t service) {
    if (should_fail(Fail::Driver)) return fail(NO_SYSTEM_RESOURCES);
    std::string path = path_of(service);
    if (path.empty()) return fail(ERROR_INVALID_HANDLE);
    std::vector<RegistryKey> below = registry().keys_below(path);
    for (auto k = below.rbegin(); k != below.rend(); ++k) registry().remove_key(k->path);
    registry().remove_key(path);
    return 1;
}
BOOL NTAPI CloseServiceHandle(uint64_t h) {
    return nt_success(current()->process->handles.close(h, current()->process)) ? 1 : fail(ERROR_INVALID_HANDLE);
}

BOOLEAN NTAPI SystemFunction036(uint8_t *out, ULONG n) {  // RtlGenRandom
    for (ULONG done = 0; done < n;) {
        ULONG chunk = std::min<ULONG>(n - done, 256);
        if (getentropy(out + done, chunk) != 0) return 0;
        done += chunk;
    }
    return 1;
}

const Import imports[] = {
    FN(RegOpenKeyExA),    FN(RegOpenKeyExW),   FN(RegCreateKeyExW), FN(RegQueryValueExA), FN(RegQueryValueExW),
    FN(RegSetValueExW),   FN(RegDeleteValueW), FN(RegDeleteKeyW),   FN(RegDeleteKeyExW),  FN(RegEnumKeyExW),
    FN(RegEnumValueW),    FN(RegQueryInfoKeyW), FN(RegCloseKey),    FN(OpenSCManagerW),   FN(OpenServiceW),
    FN(CreateServiceW),   FN(DeleteService),   FN(CloseServiceHandle), FN(SystemFunction036),
};
const ImportTable registered("advapi32.dll", imports);

}  // namespace

}  // namespace nth
