// SPDX-License-Identifier: GPL-2.0-or-later
//
// sanctl.exe: puts the SAN driver and provider into an existing Windows, takes them out again, and says what is there. It asks
// nothing and waits for nothing, so that a script can run it.
#include <cstring>

#include "product.h"
#include "run.h"
#include "text.h"

#ifndef SANCTL_VERSION
#error SANCTL_VERSION comes from the build description
#endif

namespace sanctl {

namespace {

constexpr char help[] =
    "sanctl installs the SAN driver and the SAN provider in this Windows (Server 2003 x64 or later, 64-bit).\n"
    "\n"
    "  sanctl install [--driver-dir DIR] [--dry-run]    install what is missing, replace what differs\n"
    "  sanctl uninstall [--driver-dir DIR] [--dry-run]  remove all that install has made\n"
    "  sanctl status [--driver-dir DIR] [--json]        say for each item: installed, missing or different\n"
    "  sanctl --help | --version\n"
    "\n"
    "install and uninstall need an administrator's prompt; status reads only. None of them asks anything.\n"
    "\n"
    "  --driver-dir DIR  folder with sanproxy.inf, sanproxy.sys, sanproxy.cat, sanprov.dll and sanprov32.dll\n"
    "                    (default: the folder of sanctl.exe). For status and uninstall it need not hold them.\n"
    "  --dry-run         say what would be done, change nothing\n"
    "  --json            status as one JSON object: {\"installed\": BOOL, \"items\": [{\"item\", \"state\", \"detail\"}...]}\n"
    "\n"
    "What is installed, in this order (uninstall goes the other way):\n"
    "  driver package     sanproxy.inf among Windows' driver packages (INF\\oemN.inf)\n"
    "  driver of the NIC  sanproxy.sys with its service, for a NIC that is there; without one, when it appears\n"
    "  provider           System32\\sanprov.dll, for 64-bit programs\n"
    "  provider, 32-bit   SysWOW64\\sanprov.dll (from sanprov32.dll), for 32-bit programs\n"
    "  TCP on SAN         HKLM\\System\\CurrentControlSet\\Services\\Winsock\\Parameters\\TCP on SAN: the provider's id, which\n"
    "                     tells the Windows Sockets switch that it is a SAN provider\n"
    "  Winsock catalog    a hidden base provider at the end of the 64-bit and of the 32-bit catalog; other entries keep\n"
    "                     their content and order\n"
    "Running programs use the provider after their next WSAStartup; restart services that shall use it.\n"
    "\n"
    "When a step fails, the steps of this run are undone, last first, and sanctl says which step failed, with which error, and\n"
    "what to do. Installing twice changes nothing; a half-installed state is completed. A file that is in use is put aside\n"
    "(NAME.old) and goes when Windows restarts.\n"
    "\n"
    "The driver's signature must be trusted: for a test certificate, import it into the computer's \"Trusted Root Certification\n"
    "Authorities\" and \"Trusted Publishers\", and switch test signing on (bcdedit /set testsigning on; restart).\n"
    "\n"
    "Exit status: 0 done, or all is installed; 1 status: something is missing or different; 2 wrong usage; 3 failed.\n";

struct Options {
    std::wstring command, directory;
    bool dry_run = false, json = false, driver_directory = false;
};

Exit usage(const std::wstring &problem) {
    say(stderr, L"sanctl: " + problem + L"; see sanctl --help");
    return Exit::Usage;
}

// Empty when they are fine.
std::wstring parse(int argc, wchar_t **argv, Options &options) {
    for (int i = 1; i < argc; ++i) {
        const std::wstring word = argv[i];
        if (word == L"--dry-run") options.dry_run = true;
        else if (word == L"--json") options.json = true;
        else if (word == L"--driver-dir") {
            if (i + 1 == argc || !*argv[i + 1]) return L"--driver-dir needs the name of a folder";
            options.directory = argv[++i];
            options.driver_directory = true;
        } else if (!word.empty() && word[0] == L'-') return L"unknown option '" + word + L"' (accepted: --driver-dir, --dry-run, --json)";
        else if (!options.command.empty()) return L"unexpected '" + word + L"' after " + options.command;
        else options.command = word;
    }
    const std::wstring &c = options.command;
    if (c.empty()) return L"no command (accepted: install, uninstall, status)";
    if (c != L"install" && c != L"uninstall" && c != L"status") return L"unknown command '" + c + L"' (accepted: install, uninstall, status)";
    if (options.dry_run && c == L"status") return L"--dry-run is for install and uninstall";
    if (options.json && c != L"status") return L"--json is for status";
    return L"";
}

// Before anything is changed: everything that will be needed.
Failure find_sources(const std::wstring &directory) {
    std::vector<const wchar_t *> needed = {driver_inf, driver_file, provider_file};
    if (!files::system32_bit_directory().empty()) needed.push_back(provider32_source);
    for (const wchar_t *name : needed) {
        bool there = false;
        DWORD error = files::exists(directory + L"\\" + name, there);
        if (!error && !there) error = ERROR_FILE_NOT_FOUND;
        if (error) return {error, L"looking for " + directory + L"\\" + name};
    }
    bool has_catalog = true;
    if (DWORD error = files::exists(directory + L"\\" + driver_catalog, has_catalog))
        return {error, L"looking for " + directory + L"\\" + driver_catalog};
    if (!has_catalog)
        say(stderr, std::wstring(L"sanctl: remark: there is no ") + driver_catalog + L" in " + directory +
                        L": the driver is unsigned, and Windows may refuse it");
    return {};
}

Exit run(int argc, wchar_t **argv) {
    if (argc == 2 && wcscmp(argv[1], L"--help") == 0) return fputs(help, stdout), Exit::Ok;
    if (argc == 2 && wcscmp(argv[1], L"--version") == 0) return puts("sanctl " SANCTL_VERSION), Exit::Ok;
    Options options;
    const std::wstring problem = parse(argc, argv, options);
    if (!problem.empty()) return usage(problem);

    const std::wstring directory = options.driver_directory ? files::full_path(options.directory) : files::own_directory();
    WSADATA data;
    if (const int error = WSAStartup(MAKEWORD(2, 2), &data)) {
        say(stderr, L"sanctl: Winsock does not start: " + error_text(static_cast<DWORD>(error)));
        return Exit::Failed;
    }
    if (files::system_directory().empty() || files::windows_directory().empty()) {
        say(stderr, L"sanctl: Windows does not say where it is installed: " + error_text(GetLastError()));
        return Exit::Failed;
    }
    if (options.command == L"install")
        if (const Failure f = find_sources(directory)) {
            say(stderr, L"sanctl: " + f.what + L": " + error_text(f.code));
            say(stderr, L"  what to do: " + advice(f.code));
            say(stderr, L"sanctl: nothing was changed");
            return Exit::Failed;
        }
    const Steps steps = make_steps(directory);
    if (options.command == L"status") return status(steps, options.json);
    return change(steps, options.command == L"install" ? Change::Install : Change::Uninstall, options.dry_run);
}

} // namespace

Steps make_steps(const std::wstring &directory) {
    Steps steps;
    steps.push_back(driver_package_step(directory));
    steps.push_back(driver_device_step(directory));
    steps.push_back(file_step(L"provider", directory + L"\\" + provider_file, files::system_directory()));
    const std::wstring directory32 = files::system32_bit_directory();
    if (!directory32.empty()) steps.push_back(file_step(L"provider, 32-bit", directory + L"\\" + provider32_source, directory32));
    steps.push_back(san_list_step());
    steps.push_back(catalog_step());
    return steps;
}

} // namespace sanctl

extern "C" int wmain(int argc, wchar_t **argv) { return static_cast<int>(sanctl::run(argc, argv)); }
