// SPDX-License-Identifier: GPL-2.0-or-later
#include "system.h"

namespace sanctl {

HMODULE system_library(const wchar_t *name) { return LoadLibraryW((files::system_directory() + L"\\" + name).c_str()); }

} // namespace sanctl

namespace sanctl::files {

namespace {

bool absent(DWORD error) { return error == ERROR_FILE_NOT_FOUND || error == ERROR_PATH_NOT_FOUND; }
DWORD last_unless(BOOL ok) { return ok ? 0 : GetLastError(); }

std::wstring directory(UINT(WINAPI *get)(LPWSTR, UINT)) {
    wchar_t text[MAX_PATH] = {};
    const UINT length = get(text, MAX_PATH);
    return length > 0 && length < MAX_PATH ? std::wstring(text, length) : std::wstring();
}

} // namespace

std::wstring own_directory() {
    wchar_t text[MAX_PATH] = {};
    const DWORD length = GetModuleFileNameW(nullptr, text, MAX_PATH);
    std::wstring path(text, length < MAX_PATH ? length : 0);
    const size_t slash = path.find_last_of(L"\\/");
    return slash == std::wstring::npos ? L"." : path.substr(0, slash);
}

std::wstring full_path(const std::wstring &path) {
    wchar_t text[MAX_PATH] = {};
    const DWORD length = GetFullPathNameW(path.c_str(), MAX_PATH, text, nullptr);
    return length > 0 && length < MAX_PATH ? std::wstring(text, length) : path;
}

// Not GetWindowsDirectory: on a terminal server that is the user's own.
std::wstring windows_directory() { return directory(GetSystemWindowsDirectoryW); }
std::wstring system_directory() { return directory(GetSystemDirectoryW); }
std::wstring system32_bit_directory() { return directory(GetSystemWow64DirectoryW); }

DWORD exists(const std::wstring &path, bool &there) {
    there = GetFileAttributesW(path.c_str()) != INVALID_FILE_ATTRIBUTES;
    if (there) return 0;
    const DWORD error = GetLastError();
    return absent(error) ? 0 : error;
}

DWORD read(const std::wstring &path, std::string &content) {
    content.clear();
    const HANDLE file = CreateFileW(path.c_str(), GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, nullptr, OPEN_EXISTING, 0, nullptr);
    if (file == INVALID_HANDLE_VALUE) return GetLastError();
    DWORD error = 0, done = 0;
    char block[16384];
    do {
        error = last_unless(ReadFile(file, block, sizeof block, &done, nullptr));
        if (!error) content.append(block, done);
    } while (!error && done != 0);
    CloseHandle(file);
    return error;
}

DWORD find(const std::wstring &directory, const wchar_t *pattern, std::vector<std::wstring> &names) {
    names.clear();
    WIN32_FIND_DATAW data = {};
    const HANDLE search = FindFirstFileW((directory + L"\\" + pattern).c_str(), &data);
    if (search == INVALID_HANDLE_VALUE) {
        const DWORD error = GetLastError();
        return absent(error) ? 0 : error;
    }
    do {
        names.push_back(data.cFileName);
    } while (FindNextFileW(search, &data));
    const DWORD error = GetLastError();
    FindClose(search);
    return error == ERROR_NO_MORE_FILES ? 0 : error;
}

DWORD copy(const std::wstring &from, const std::wstring &to) { return last_unless(CopyFileW(from.c_str(), to.c_str(), FALSE)); }

DWORD move(const std::wstring &from, const std::wstring &to) {
    return last_unless(MoveFileExW(from.c_str(), to.c_str(), MOVEFILE_REPLACE_EXISTING));
}

DWORD remove(const std::wstring &path) {
    const DWORD error = last_unless(DeleteFileW(path.c_str()));
    return absent(error) ? 0 : error;
}

DWORD remove_at_restart(const std::wstring &path) {
    return last_unless(MoveFileExW(path.c_str(), nullptr, MOVEFILE_DELAY_UNTIL_REBOOT));
}

} // namespace sanctl::files
