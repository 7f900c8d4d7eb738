// SPDX-License-Identifier: GPL-2.0-or-later
//
// The functions for the other bitness and for the order are looked up at run time: not every ws2_32.dll has them.
#include "system.h"

namespace sanctl::catalog {

namespace {

using Enumerate = int(WSPAPI *)(LPINT, LPWSAPROTOCOL_INFOW, LPDWORD, LPINT);
using PathOf = int(WSPAPI *)(LPGUID, WCHAR *, LPINT, LPINT);
using Install = int(WSPAPI *)(LPGUID, const WCHAR *, const LPWSAPROTOCOL_INFOW, DWORD, LPINT);
using Remove = int(WSPAPI *)(LPGUID, LPINT);
using WriteOrder = int(WSPAPI *)(LPDWORD, DWORD);

template <typename F> F function(const char *name, const wchar_t *library = L"ws2_32.dll") {
    const HMODULE module = system_library(library);
    return module ? reinterpret_cast<F>(reinterpret_cast<void *>(GetProcAddress(module, name))) : nullptr;
}

template <typename F> F function(View view, const char *name64, const char *name32) {
    return function<F>(view == View::Programs64 ? name64 : name32);
}

DWORD outcome(int result, int error) {
    if (result != SOCKET_ERROR) return 0;
    return error ? static_cast<DWORD>(error) : WSASYSCALLFAILURE;
}

DWORD call_install(Install install, const GUID &id, const Provider &provider) {
    if (!install) return ERROR_CALL_NOT_IMPLEMENTED;
    GUID guid = id;
    std::vector<WSAPROTOCOL_INFOW> entries = provider.entries;
    int error = 0;
    return outcome(install(&guid, provider.path.c_str(), entries.data(), static_cast<DWORD>(entries.size()), &error), error);
}

} // namespace

DWORD list(View view, std::vector<WSAPROTOCOL_INFOW> &entries) {
    entries.clear();
    const auto enumerate = function<Enumerate>(view, "WSCEnumProtocols", "WSCEnumProtocols32");
    if (!enumerate) return ERROR_CALL_NOT_IMPLEMENTED;
    // It may grow between two calls, though not for ever.
    DWORD bytes = 0;
    for (int attempt = 0; attempt < 4; ++attempt) {
        int error = 0;
        const int count = enumerate(nullptr, entries.data(), &bytes, &error);
        if (count != SOCKET_ERROR) {
            entries.resize(static_cast<size_t>(count));
            return 0;
        }
        if (error != WSAENOBUFS || bytes > (1u << 24)) return outcome(count, error);
        entries.resize(bytes / sizeof(WSAPROTOCOL_INFOW) + 1);
        bytes = static_cast<DWORD>(entries.size() * sizeof(WSAPROTOCOL_INFOW));
    }
    return WSAENOBUFS;
}

DWORD path_of(View view, const GUID &id, std::wstring &path) {
    const auto get = function<PathOf>(view, "WSCGetProviderPath", "WSCGetProviderPath32");
    if (!get) return ERROR_CALL_NOT_IMPLEMENTED;
    GUID guid = id;
    wchar_t text[MAX_PATH + 1] = {};
    int length = MAX_PATH, error = 0;
    const DWORD result = outcome(get(&guid, text, &length, &error), error);
    path = text;
    return result;
}

DWORD install64(const GUID &id, const Provider &provider) { return call_install(function<Install>("WSCInstallProvider"), id, provider); }

DWORD install_both(const GUID &id, const Provider &provider) {
    return call_install(function<Install>("WSCInstallProvider64_32"), id, provider);
}

DWORD update(View view, const GUID &id, const Provider &provider) {
    return call_install(function<Install>(view, "WSCUpdateProvider", "WSCUpdateProvider32"), id, provider);
}

DWORD remove(View view, const GUID &id) {
    const auto deinstall = function<Remove>(view, "WSCDeinstallProvider", "WSCDeinstallProvider32");
    if (!deinstall) return ERROR_CALL_NOT_IMPLEMENTED;
    GUID guid = id;
    int error = 0;
    return outcome(deinstall(&guid, &error), error);
}

DWORD write_order(View view, const std::vector<DWORD> &ids) {
    auto write = function<WriteOrder>(view, "WSCWriteProviderOrder", "WSCWriteProviderOrder32");
    if (!write && view == View::Programs64) write = function<WriteOrder>("WSCWriteProviderOrder", L"sporder.dll");
    if (!write) return ERROR_CALL_NOT_IMPLEMENTED;
    std::vector<DWORD> copy = ids;
    return static_cast<DWORD>(write(copy.data(), static_cast<DWORD>(copy.size())));
}

} // namespace sanctl::catalog
