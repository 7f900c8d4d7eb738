// SPDX-License-Identifier: GPL-2.0-or-later
//
// ws2_32.dll: the helpers that a SAN provider and its tools use. There are no TCP sockets here; the catalog is in
// winsock_catalog.cc.
#include <arpa/inet.h>
#include <unistd.h>

#include <cstring>

#include "imports.h"
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

}  // namespace

}  // namespace nth
