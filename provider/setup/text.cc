// SPDX-License-Identifier: GPL-2.0-or-later
#include "text.h"

namespace sanctl {

namespace {

struct Known {
    DWORD code;
    const wchar_t *text, *advice;
};
constexpr wchar_t as_administrator[] = L"run sanctl from an administrator's prompt (\"Run as administrator\")";
constexpr wchar_t restart_first[] = L"restart Windows, then run the same command again";
constexpr wchar_t trust[] = L"Windows does not trust the driver's signature: put the certificate that it is signed with into \"Trusted Root "
                            L"Certification Authorities\" and \"Trusted Publishers\" of the computer, switch test signing on (bcdedit /set "
                            L"testsigning on), restart, and run sanctl again";
constexpr Known known[] = {
    {ERROR_FILE_NOT_FOUND, L"file not found", L"make sure that sanctl's folder, or the one given with --driver-dir, holds all files"},
    {ERROR_PATH_NOT_FOUND, L"path not found", L"make sure that sanctl's folder, or the one given with --driver-dir, holds all files"},
    {ERROR_ACCESS_DENIED, L"access is denied", as_administrator},
    {ERROR_NOT_ENOUGH_MEMORY, L"not enough memory", L"close some programs and run the same command again"},
    {ERROR_SHARING_VIOLATION, L"the file is in use", restart_first},
    {ERROR_GEN_FAILURE, L"it did not work", restart_first},
    {ERROR_DISK_FULL, L"the disk is full", L"make room on the system disk and run the same command again"},
    {ERROR_CALL_NOT_IMPLEMENTED, L"this Windows lacks the function", L"use Windows Server 2003 x64 or a later 64-bit Windows with all of its parts"},
    {ERROR_SERVICE_MARKED_FOR_DELETE, L"the service is being removed", restart_first},
    {ERROR_IO_DEVICE, L"the device reported an I/O error", L"check the system disk and run the same command again"},
    {ERROR_NO_SYSTEM_RESOURCES, L"not enough system resources", L"close some programs and run the same command again"},
    {WSAENOBUFS, L"no buffer space", L"close some programs and run the same command again"},
    {WSAEINVAL, L"invalid argument", L"look at the catalog with: netsh winsock show catalog"},
    {WSASYSCALLFAILURE, L"a system call failed", L"look at the catalog with: netsh winsock show catalog; then run the same command again"},
    {WSANO_RECOVERY, L"refused: not an administrator, or the entry is there already", as_administrator},
    {0xE0000203, L"no driver in the INF fits", L"use a 64-bit (x64) Windows"},
    {0xE000022F, L"the package's catalog does not fit its files", L"take sanproxy.inf, sanproxy.sys and sanproxy.cat from one build"},
    {0xE0000241, L"the signature is not trusted", trust},
    {0xE0000242, L"the publisher is not trusted", trust},
    {0xE0000243, L"the signature is not one for drivers", trust},
    {0xE0000247, L"the signature cannot be verified", trust},
    {0x800B0100, L"there is no signature", trust},
    {0x800B0109, L"the signing certificate is not trusted", trust},
};

const Known *find(DWORD code) {
    for (const Known &k : known)
        if (k.code == code) return &k;
    return nullptr;
}

} // namespace

std::string narrow(const std::wstring &text) {
    // The console's code page, so that paths read well there.
    const UINT page = GetConsoleOutputCP() ? GetConsoleOutputCP() : CP_ACP;
    const int length = static_cast<int>(text.size());
    const int bytes = length ? WideCharToMultiByte(page, 0, text.data(), length, nullptr, 0, nullptr, nullptr) : 0;
    std::string out(static_cast<size_t>(bytes > 0 ? bytes : 0), '?');
    if (bytes > 0) WideCharToMultiByte(page, 0, text.data(), length, out.data(), bytes, nullptr, nullptr);
    return out;
}

void say(FILE *to, const std::wstring &text) {
    fputs((narrow(text) + "\n").c_str(), to);
    fflush(to);
}

std::wstring error_text(DWORD code) {
    wchar_t number[32];
    _snwprintf(number, ARRAYSIZE(number), code > 0xffff ? L"error 0x%lX" : L"error %lu", code);
    if (const Known *k = find(code)) return std::wstring(number) + L" (" + k->text + L")";
    wchar_t text[256] = {};
    DWORD length = FormatMessageW(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, nullptr, code, 0, text, ARRAYSIZE(text) - 1, nullptr);
    while (length && (text[length - 1] <= L' ' || text[length - 1] == L'.')) --length;
    return length ? std::wstring(number) + L" (" + std::wstring(text, length) + L")" : number;
}

std::wstring advice(DWORD code) {
    const Known *k = find(code);
    return k ? k->advice : L"put right what the error says, then run the same command again";
}

std::string json_string(const std::wstring &text) {
    // ASCII with \u escapes: it reads the same in every code page.
    std::string out = "\"";
    for (wchar_t c : text) {
        char escape[8];
        if (c == L'"' || c == L'\\') out += '\\';
        if (c >= L' ' && c < 127) {
            out += static_cast<char>(c);
        } else {
            snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
            out += escape;
        }
    }
    return out + "\"";
}

} // namespace sanctl
