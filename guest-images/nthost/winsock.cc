// SPDX-License-Identifier: GPL-2.0-or-later
//
// ws2_32.dll and advapi32.dll: the helpers that a SAN provider and its tools use. There are no TCP sockets here.
#include <arpa/inet.h>
#include <unistd.h>

#include <cstring>

#include "imports.h"
#include "registry.h"
#include "user.h"

namespace nth {

using namespace nt;

namespace {

int NTAPI WSAGetLastError() {
    return static_cast<int>(current()->last_error());
}
void NTAPI WSASetLastError(int e) {
    current()->set_last_error(static_cast<DWORD>(e));
}
struct WsaData {
    uint16_t version, high_version, max_sockets, max_datagram;
    char *vendor;
    char description[257], status[129];
};
int NTAPI WSAStartup(uint16_t version, WsaData *d) {
    memset(d, 0, sizeof *d);
    d->version = version;
    d->high_version = 0x0202;
    strcpy(d->description, "nthost");
    return 0;
}
int NTAPI WSACleanup() {
    return 0;
}

// Events are kernel32's under another name.
uint64_t call_create(bool manual) {
    using Create = uint64_t NTAPI(void *, BOOL, BOOL, const char *);
    auto *f = reinterpret_cast<Create *>(const_cast<void *>(find_import("kernel32.dll", "CreateEventA")));
    return call_pe(f, static_cast<void *>(nullptr), BOOL{manual}, BOOL{0}, static_cast<const char *>(nullptr));
}
uint64_t NTAPI WSACreateEvent() {
    return call_create(true);
}
BOOL NTAPI WSASetEvent(uint64_t h) {
    auto e = user_object<KEVENT>(h, ObjectKind::Event);
    if (!e) return 0;
    set_event(e.get());
    return 1;
}
BOOL NTAPI WSAResetEvent(uint64_t h) {
    auto e = user_object<KEVENT>(h, ObjectKind::Event);
    if (!e) return 0;
    reset_event(e.get());
    return 1;
}
BOOL NTAPI WSACloseEvent(uint64_t h) {
    NTSTATUS s = current()->process->handles.close(h, current()->process);
    return nt_success(s) ? 1 : fail_status(s);
}
DWORD NTAPI WSAWaitForMultipleEvents(DWORD count, const uint64_t *handles, BOOL all, DWORD ms, BOOL) {
    using Wait = DWORD NTAPI(DWORD, const uint64_t *, BOOL, DWORD);
    auto *f = reinterpret_cast<Wait *>(const_cast<void *>(find_import("kernel32.dll", "WaitForMultipleObjects")));
    return call_pe(f, count, handles, all, ms);
}

uint16_t NTAPI htons_(uint16_t v) {
    return htons(v);
}
uint32_t NTAPI htonl_(uint32_t v) {
    return htonl(v);
}
uint32_t NTAPI inet_addr_(const char *s) {
    return inet_addr(s);
}
char *NTAPI inet_ntoa_(uint32_t a) {
    static thread_local char text[16];
    auto *b = reinterpret_cast<uint8_t *>(&a);
    snprintf(text, sizeof text, "%u.%u.%u.%u", b[0], b[1], b[2], b[3]);
    return text;
}
int NTAPI inet_pton_(int family, const char *s, void *out) {
    if (family != 2) return -1;
    return inet_pton(AF_INET, s, out);
}
const char *NTAPI inet_ntop_(int family, const void *a, char *out, uint64_t size) {
    if (family != 2) return nullptr;
    return inet_ntop(AF_INET, a, out, static_cast<socklen_t>(size));
}

const Import imports[] = {
    FN(WSAGetLastError),
    FN(WSASetLastError),
    FN(WSAStartup),
    FN(WSACleanup),
    FN(WSACreateEvent),
    FN(WSASetEvent),
    FN(WSAResetEvent),
    FN(WSACloseEvent),
    FN(WSAWaitForMultipleEvents),
    FN_AS("htons", htons_),
    FN_AS("ntohs", htons_),
    FN_AS("htonl", htonl_),
    FN_AS("ntohl", htonl_),
    FN_AS("inet_addr", inet_addr_),
    FN_AS("inet_ntoa", inet_ntoa_),
    FN_AS("inet_pton", inet_pton_),
    FN_AS("inet_ntop", inet_ntop_),
};
const ImportTable registered("ws2_32.dll", imports);

// ---- advapi32: the machine's registry, by predefined keys
std::string hive_path(uint64_t key) {
    switch (static_cast<uint32_t>(key)) {
        case 0x80000002: return "\\Registry\\Machine";
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
LONG NTAPI RegOpenKeyExA(uint64_t key, const char *name, DWORD, DWORD, uint64_t *out) {
    std::string path = path_of(key);
    if (path.empty()) return ERROR_INVALID_HANDLE;
    if (name != nullptr && *name != 0) path += std::string("\\") + name;
    if (!registry().has_key(path)) return ERROR_FILE_NOT_FOUND;
    auto *k = object_create<UserKey>(ObjectKind::Key);
    k->path = path;
    *out = current()->process->handles.insert(k);
    object_release(k);
    return 0;
}
LONG NTAPI RegQueryValueExA(uint64_t key, const char *name, DWORD *, DWORD *type, uint8_t *out, DWORD *size) {
    RegistryValue v;
    if (!registry().query(path_of(key), name != nullptr ? name : "", &v)) return ERROR_FILE_NOT_FOUND;
    if (v.type == 1) {
        std::string s = narrow_z(reinterpret_cast<const WCHAR *>(v.data.data()));
        v.data.assign(s.begin(), s.end());
        v.data.push_back(0);
    }
    if (type != nullptr) *type = v.type;
    DWORD have = size != nullptr ? *size : 0;
    if (size != nullptr) *size = static_cast<DWORD>(v.data.size());
    if (out == nullptr) return 0;
    if (have < v.data.size()) return ERROR_MORE_DATA;
    memcpy(out, v.data.data(), v.data.size());
    return 0;
}
LONG NTAPI RegCloseKey(uint64_t key) {
    if (!hive_path(key).empty()) return 0;
    return nt_success(current()->process->handles.close(key, current()->process)) ? LONG{0}
                                                                                  : LONG{ERROR_INVALID_HANDLE};
}
BOOLEAN NTAPI SystemFunction036(uint8_t *out, ULONG n) {  // RtlGenRandom
    for (ULONG done = 0; done < n;) {
        ULONG chunk = std::min<ULONG>(n - done, 256);
        if (getentropy(out + done, chunk) != 0) return 0;
        done += chunk;
    }
    return 1;
}

const Import advapi_imports[] = {FN(RegOpenKeyExA), FN(RegQueryValueExA), FN(RegCloseKey), FN(SystemFunction036)};
const ImportTable registered_advapi("advapi32.dll", advapi_imports);

}  // namespace

}  // namespace nth
