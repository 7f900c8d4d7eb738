// SPDX-License-Identifier: GPL-2.0-or-later
//
// system.h: all that sanctl asks of Windows: registry, Winsock catalog, files, drivers. Each function does one thing, decides
// nothing, and returns a Windows error code, 0 for success. That something is not there is an answer, not an error, where the
// result can say so.
#pragma once

#include <winsock2.h>
#include <ws2spi.h>
#include <windows.h>

#include <optional>
#include <string>
#include <vector>

namespace sanctl {

// A library of Windows' own, not one of that name beside sanctl.exe; null: there is none.
HMODULE system_library(const wchar_t *name);

// --- registry: keys below HKEY_LOCAL_MACHINE, as 64-bit programs see them -----------------------------------------------
namespace registry {

struct Value {
    DWORD type = 0;
    std::vector<BYTE> data;
    bool operator==(const Value &) const = default;
};
struct KeyInfo {
    std::wstring key_class;
    DWORD subkeys = 0, values = 0;
};
enum class View { Programs64, Programs32 };

DWORD key_info(const std::wstring &key, std::optional<KeyInfo> &info);
// One level: the key above must exist.
DWORD create_key(const std::wstring &key, const wchar_t *key_class);
DWORD delete_key(const std::wstring &key);
DWORD read(const std::wstring &key, const wchar_t *name, View view, std::optional<Value> &value);
DWORD write(const std::wstring &key, const wchar_t *name, const Value &value);
DWORD delete_value(const std::wstring &key, const wchar_t *name);

} // namespace registry

// --- the Winsock catalog: two of them on a Windows that runs 32-bit programs ------------------------------------------------
namespace catalog {

enum class View { Programs64, Programs32 };

struct Provider {
    std::wstring path;
    std::vector<WSAPROTOCOL_INFOW> entries;
};

DWORD list(View view, std::vector<WSAPROTOCOL_INFOW> &entries);
DWORD path_of(View view, const GUID &id, std::wstring &path);
DWORD install64(const GUID &id, const Provider &provider);   // into the 64-bit catalog
DWORD install_both(const GUID &id, const Provider &provider); // into both
DWORD update(View view, const GUID &id, const Provider &provider);
DWORD remove(View view, const GUID &id);
DWORD write_order(View view, const std::vector<DWORD> &ids); // all ids of the catalog

} // namespace catalog

// --- files -----------------------------------------------------------------------------------------------------------------
namespace files {

std::wstring own_directory();            // of sanctl.exe
std::wstring full_path(const std::wstring &path);
std::wstring windows_directory();        // C:\WINDOWS
std::wstring system_directory();         // of 64-bit programs
std::wstring system32_bit_directory();   // of 32-bit programs; empty where Windows runs none

DWORD exists(const std::wstring &path, bool &there);
DWORD read(const std::wstring &path, std::string &content);
DWORD find(const std::wstring &directory, const wchar_t *pattern, std::vector<std::wstring> &names);
DWORD copy(const std::wstring &from, const std::wstring &to); // replaces `to`
DWORD move(const std::wstring &from, const std::wstring &to); // within a directory, also of files in use; replaces `to`
DWORD remove(const std::wstring &path);                       // fails for files in use
DWORD remove_at_restart(const std::wstring &path);
inline bool in_use(DWORD error) { return error == ERROR_ACCESS_DENIED || error == ERROR_SHARING_VIOLATION; }

} // namespace files

// --- drivers ---------------------------------------------------------------------------------------------------------------
namespace driver {

struct Devices {
    unsigned present = 0, // with the hardware id
        bound = 0;        // of these, with the service
};

// Makes the package known to Windows; name: what Windows calls it (oemN.inf).
DWORD add_package(const std::wstring &inf, std::wstring &name);
DWORD remove_package(const std::wstring &name);
DWORD find_devices(const wchar_t *hardware_id, const wchar_t *service, Devices &devices);
DWORD update_devices(const wchar_t *hardware_id, const std::wstring &inf, bool &restart);
// Takes the devices with the service out of the device tree, until the next rescan.
DWORD remove_devices(const wchar_t *hardware_id, const wchar_t *service);
DWORD rescan();
DWORD service_exists(const wchar_t *service, bool &there);
DWORD create_service(const wchar_t *service, const wchar_t *text, const wchar_t *image_path);
DWORD delete_service(const wchar_t *service);

} // namespace driver

} // namespace sanctl
