// SPDX-License-Identifier: GPL-2.0-or-later
//
// product.h: the names under which Windows knows what sanctl installs. They must not change from version to version: a later
// sanctl finds by them what an earlier one has installed.
#pragma once

#include "system.h"

namespace sanctl {

// {5A4E1A60-7C1B-4E0D-9B52-3C8D0E5F7A11}: the provider in the Winsock catalog and under "TCP on SAN".
inline constexpr GUID provider_id = {0x5A4E1A60, 0x7C1B, 0x4E0D, {0x9B, 0x52, 0x3C, 0x8D, 0x0E, 0x5F, 0x7A, 0x11}};
// The value's name is any text that is unique among providers: the id itself is.
inline constexpr wchar_t provider_value_name[] = L"{5A4E1A60-7C1B-4E0D-9B52-3C8D0E5F7A11}";
inline constexpr wchar_t protocol_text[] = L"sanlab SAN provider";

// The list by which the Windows Sockets switch tells SAN providers from others. Below HKEY_LOCAL_MACHINE. 32-bit programs see the
// same: Windows keeps one System key for both.
inline constexpr wchar_t san_list_key[] = L"System\\CurrentControlSet\\Services\\Winsock\\Parameters\\TCP on SAN";

// Both catalogs name the 64-bit path: a 32-bit process that opens System32 is led to SysWOW64.
inline constexpr wchar_t provider_path[] = L"%SystemRoot%\\System32\\sanprov.dll";
inline constexpr wchar_t provider_file[] = L"sanprov.dll";
inline constexpr wchar_t provider32_source[] = L"sanprov32.dll"; // installed as provider_file in SysWOW64

inline constexpr wchar_t driver_inf[] = L"sanproxy.inf";
inline constexpr wchar_t driver_catalog[] = L"sanproxy.cat";
inline constexpr wchar_t driver_file[] = L"sanproxy.sys";
inline constexpr char driver_inf_mark[] = "sanproxy.cat"; // stands in every version of the INF, and in no other INF
inline constexpr wchar_t driver_service[] = L"sanproxy";
inline constexpr wchar_t driver_service_text[] = L"sanlab SAN proxy driver";
inline constexpr wchar_t driver_image_path[] = L"system32\\DRIVERS\\sanproxy.sys";
inline constexpr wchar_t hardware_id[] = L"PCI\\VEN_1234&DEV_5A4E";

} // namespace sanctl
