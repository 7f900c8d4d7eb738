// SPDX-License-Identifier: GPL-2.0-or-later
//
// ws2_32.dll: the catalogs of Winsock providers, one for each bitness. nthost loads no provider because of them. --fail catalog makes
// the calls fail; WSCInstallProvider64_32 counts twice, so that it can fail between the two catalogs.
#include <cstring>

#include "imports.h"
#include "setup_state.h"
#include "user.h"
#include "verifier.h"

namespace nth {

using namespace nt;

namespace {

constexpr int SOCKET_ERROR = -1;
constexpr int WSAEFAULT = 10014, WSAEINVAL = 10022, WSAENOBUFS = 10055, WSASYSCALLFAILURE = 10107, WSANO_RECOVERY = 11003;
constexpr size_t MAX_PATH = 260;
enum { Programs64, Programs32 };
using Entries = std::vector<CatalogEntry>;

int failed(int *error, int code) {
    if (error != nullptr) *error = code;
    return SOCKET_ERROR;
}
bool is(const CatalogEntry &e, const uint8_t *id) {
    return memcmp(e.info.provider, id, 16) == 0;
}
bool has(const Entries &entries, const uint8_t *id) {
    for (auto &e : entries)
        if (is(e, id)) return true;
    return false;
}
Entries make_entries(const uint8_t *id, const std::string &path, const ProtocolInfo *infos, DWORD count) {
    Entries out;
    for (DWORD i = 0; i < count; i++) {
        CatalogEntry e{infos[i], path};
        memcpy(e.info.provider, id, 16);
        out.push_back(e);
    }
    return out;
}
bool acceptable(const WCHAR *path, const ProtocolInfo *infos, DWORD count) {
    if (count == 0 || *path == 0 || std::char_traits<char16_t>::length(path) >= MAX_PATH) return false;
    for (DWORD i = 0; i < count; i++)
        if (infos[i].chain_length < 0 || infos[i].chain_length > 7) return false;
    return true;
}
void add(SetupState &s, int view, Entries fresh) {
    for (auto &e : fresh) e.info.id = s.next_catalog_id++;
    Entries &all = s.catalog[view];
    all.insert(s.catalog_adds_first ? all.begin() : all.end(), fresh.begin(), fresh.end());
}

int install(bool both, const uint8_t *id, const WCHAR *path, const ProtocolInfo *infos, DWORD count, int *error) {
    if (should_fail(Fail::Catalog)) return failed(error, WSASYSCALLFAILURE);
    if (id == nullptr || path == nullptr || infos == nullptr) return failed(error, WSAEFAULT);
    if (!acceptable(path, infos, count)) return failed(error, WSAEINVAL);
    SetupState &s = setup_state();
    Locked l(s.lock);
    if (has(s.catalog[Programs64], id) || (both && has(s.catalog[Programs32], id))) return failed(error, WSANO_RECOVERY);
    Entries fresh = make_entries(id, narrow_z(path), infos, count);
    add(s, Programs64, fresh);
    if (!both) return 0;
    if (should_fail(Fail::Catalog)) return failed(error, WSASYSCALLFAILURE);
    if (s.runs_32_bit) add(s, Programs32, fresh);
    return 0;
}
int NTAPI WSCInstallProvider(const uint8_t *id, const WCHAR *path, const ProtocolInfo *infos, DWORD count, int *error) {
    return install(false, id, path, infos, count, error);
}
int NTAPI WSCInstallProvider64_32(const uint8_t *id, const WCHAR *path, const ProtocolInfo *infos, DWORD count, int *error) {
    return install(true, id, path, infos, count, error);
}

int update(int view, const uint8_t *id, const WCHAR *path, const ProtocolInfo *infos, DWORD count, int *error) {
    if (should_fail(Fail::Catalog)) return failed(error, WSASYSCALLFAILURE);
    if (id == nullptr || path == nullptr || infos == nullptr) return failed(error, WSAEFAULT);
    SetupState &s = setup_state();
    Locked l(s.lock);
    Entries &all = s.catalog[view];
    if (!acceptable(path, infos, count) || !has(all, id)) return failed(error, WSAEINVAL);
    // In their places, with their ids, as far as they go.
    Entries fresh = make_entries(id, narrow_z(path), infos, count), out;
    size_t used = 0;
    for (auto &e : all) {
        if (!is(e, id)) {
            out.push_back(e);
        } else if (used < fresh.size()) {
            fresh[used].info.id = e.info.id;
            out.push_back(fresh[used++]);
        }
    }
    all = out;
    add(s, view, Entries(fresh.begin() + static_cast<ptrdiff_t>(used), fresh.end()));
    return 0;
}
int NTAPI WSCUpdateProvider(const uint8_t *id, const WCHAR *path, const ProtocolInfo *infos, DWORD count, int *error) {
    return update(Programs64, id, path, infos, count, error);
}
int NTAPI WSCUpdateProvider32(const uint8_t *id, const WCHAR *path, const ProtocolInfo *infos, DWORD count, int *error) {
    return update(Programs32, id, path, infos, count, error);
}

int deinstall(int view, const uint8_t *id, int *error) {
    if (should_fail(Fail::Catalog)) return failed(error, WSASYSCALLFAILURE);
    if (id == nullptr) return failed(error, WSAEFAULT);
    SetupState &s = setup_state();
    Locked l(s.lock);
    return std::erase_if(s.catalog[view], [&](auto &e) { return is(e, id); }) != 0 ? 0 : failed(error, WSAEINVAL);
}
int NTAPI WSCDeinstallProvider(const uint8_t *id, int *error) {
    return deinstall(Programs64, id, error);
}
int NTAPI WSCDeinstallProvider32(const uint8_t *id, int *error) {
    return deinstall(Programs32, id, error);
}

int enumerate(int view, const int32_t *protocols, ProtocolInfo *out, DWORD *bytes, int *error) {
    if (should_fail(Fail::Catalog)) return failed(error, WSASYSCALLFAILURE);
    if (bytes == nullptr) return failed(error, WSAEFAULT);
    SetupState &s = setup_state();
    Locked l(s.lock);
    std::vector<ProtocolInfo> found;
    for (auto &e : s.catalog[view]) {
        bool wanted = protocols == nullptr;
        for (const int32_t *p = protocols; p != nullptr && *p != 0; p++) wanted = wanted || *p == e.info.protocol;
        if (wanted) found.push_back(e.info);
    }
    size_t needed = found.size() * sizeof(ProtocolInfo);
    if (*bytes < needed || (out == nullptr && needed != 0)) {
        *bytes = static_cast<DWORD>(needed);
        return failed(error, WSAENOBUFS);
    }
    if (needed != 0) memcpy(static_cast<void *>(out), found.data(), needed);
    return static_cast<int>(found.size());
}
int NTAPI WSCEnumProtocols(const int32_t *protocols, ProtocolInfo *out, DWORD *bytes, int *error) {
    return enumerate(Programs64, protocols, out, bytes, error);
}
int NTAPI WSCEnumProtocols32(const int32_t *protocols, ProtocolInfo *out, DWORD *bytes, int *error) {
    return enumerate(Programs32, protocols, out, bytes, error);
}

int provider_path(int view, const uint8_t *id, WCHAR *out, int *length, int *error) {
    if (should_fail(Fail::Catalog)) return failed(error, WSASYSCALLFAILURE);
    if (id == nullptr || out == nullptr || length == nullptr) return failed(error, WSAEFAULT);
    SetupState &s = setup_state();
    Locked l(s.lock);
    for (auto &e : s.catalog[view]) {
        if (!is(e, id)) continue;
        std::u16string w = widen(e.path);
        int have = *length;
        *length = static_cast<int>(w.size() + 1);
        if (have < *length) return failed(error, WSAEFAULT);
        memcpy(out, w.c_str(), w.size() * 2 + 2);
        return 0;
    }
    return failed(error, WSAEINVAL);
}
int NTAPI WSCGetProviderPath(const uint8_t *id, WCHAR *out, int *length, int *error) {
    return provider_path(Programs64, id, out, length, error);
}
int NTAPI WSCGetProviderPath32(const uint8_t *id, WCHAR *out, int *length, int *error) {
    return provider_path(Programs32, id, out, length, error);
}

// These return the error itself.
int write_order(int view, const DWORD *ids, DWORD count) {
    if (should_fail(Fail::Catalog)) return WSASYSCALLFAILURE;
    if (ids == nullptr) return WSAEFAULT;
    SetupState &s = setup_state();
    Locked l(s.lock);
    Entries ordered;
    for (DWORD i = 0; i < count; i++) {
        for (DWORD k = 0; k < i; k++)
            if (ids[k] == ids[i]) return WSAEINVAL;
        for (auto &e : s.catalog[view])
            if (e.info.id == ids[i]) ordered.push_back(e);
    }
    if (ordered.size() != count || count != s.catalog[view].size()) return WSAEINVAL;
    s.catalog[view] = ordered;
    return 0;
}
int NTAPI WSCWriteProviderOrder(const DWORD *ids, DWORD count) {
    return write_order(Programs64, ids, count);
}
int NTAPI WSCWriteProviderOrder32(const DWORD *ids, DWORD count) {
    return write_order(Programs32, ids, count);
}

const Import imports[] = {
    FN(WSCInstallProvider),     FN(WSCInstallProvider64_32), FN(WSCUpdateProvider),  FN(WSCUpdateProvider32),
    FN(WSCDeinstallProvider),   FN(WSCDeinstallProvider32),  FN(WSCEnumProtocols),   FN(WSCEnumProtocols32),
    FN(WSCGetProviderPath),     FN(WSCGetProviderPath32),    FN(WSCWriteProviderOrder), FN(WSCWriteProviderOrder32),
};
const ImportTable registered("ws2_32.dll", imports);

}  // namespace

}  // namespace nth
