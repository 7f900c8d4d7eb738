// SPDX-License-Identifier: GPL-2.0-or-later
//
// nthost: runs a Windows driver, DLLs and programs (x64 PE files) in one Linux process. See README.md.
#include <CLI/CLI.hpp>

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>

#include "cpu.h"
#include "device.h"
#include "fault.h"
#include "imports.h"
#include "io.h"
#include "pnp.h"
#include "process.h"
#include "registry.h"
#include "sanlab_version.h"
#include "setup_state.h"
#include "user.h"
#include "user_access.h"
#include "verifier.h"

namespace nth {

void set_initial_system_process();

namespace {

struct Program {
    std::string path, command_line;
};

// Windows quoting, so that the program's run-time finds the same words again.
std::string quote(const std::string &word) {
    if (!word.empty() && word.find_first_of(" \t\"") == std::string::npos) return word;
    std::string out = "\"";
    size_t slashes = 0;
    for (char c : word) {
        if (c == '\\') {
            slashes++;
            continue;
        }
        out.append(c == '"' ? 2 * slashes + 1 : slashes, '\\');
        slashes = 0;
        out += c;
    }
    return out.append(2 * slashes, '\\') + "\"";
}

std::vector<Program> split_programs(const std::vector<std::string> &words) {
    std::vector<Program> out;
    bool fresh = true;
    for (auto &w : words) {
        if (w == "--and") {
            fresh = true;
        } else if (fresh) {
            out.push_back({w, quote(w)});
            fresh = false;
        } else {
            out.back().command_line += " " + quote(w);
        }
    }
    return out;
}

// --unplug: pulls the device after a while, unless the programs have ended before.
class Unplugger {
  public:
    explicit Unplugger(uint32_t ms) {
        if (ms == 0) return;
        thread_ = std::thread([this, ms] {
            adopt_system_thread("unplug");
            std::unique_lock<std::mutex> l(lock_);
            if (!end_.wait_for(l, std::chrono::milliseconds(ms), [this] { return over_; })) unplug_device();
        });
    }
    ~Unplugger() {
        if (!thread_.joinable()) return;
        {
            std::lock_guard<std::mutex> l(lock_);
            over_ = true;
        }
        end_.notify_one();
        thread_.join();
    }

  private:
    std::mutex lock_;
    std::condition_variable end_;
    bool over_ = false;
    std::thread thread_;
};

int run(const std::vector<Program> &programs, const std::string &driver, const std::string &device, uint32_t unplug) {
    std::string error;
    g_device = make_device(device, &error);
    if (!error.empty()) usage_error("%s", error.c_str());
    if (!driver.empty()) load_driver(driver);

    std::vector<Process *> started;
    for (const Program &p : programs) {
        ProgramMissing missing;
        Thread *first = nullptr;
        Process *process = create_process(p.path, p.command_line, &missing, &first);
        if (process == nullptr) {
            if (!missing.imports.empty()) report_missing_imports(p.path, missing.imports);
            usage_error("%s", missing.error.c_str());
        }
        started.push_back(process);
        start_thread(first);
        object_release(first);
    }
    std::optional<Unplugger> unplugger(unplug);
    uint32_t status = 0;
    for (size_t i = 0; i < started.size(); i++) {
        wait_for_one(&started[i]->header);
        if (i == 0) status = started[i]->exit_code;
        object_release(started[i]);
    }
    // Programs that programs started.
    for (;;) {
        std::vector<Process *> left = processes();
        if (left.empty()) break;
        wait_for_one(&left[0]->header);
        for (Process *p : left) object_release(p);
    }
    unplugger.reset();
    unload_driver();
    save_setup_state();
    report_unreached_failures();
    g_device.reset();
    // A status of NT's (an exception) does not fit into eight bits: 0xC0000005 shows as 5, never as success.
    int code = static_cast<int>(status & 0xff);
    return status != 0 && code == 0 ? 1 : code;
}

}  // namespace

}  // namespace nth

int main(int argc, char **argv) {
    using namespace nth;
    CLI::App app{"Runs a Windows driver and programs (x64 PE files) in one Linux process, one machine per process."};
    app.footer("Usage: nthost [OPTIONS] -- PROGRAM.exe [ARGS...] [--and PROGRAM2.exe [ARGS...]]...");
    std::string driver, device = "none", verifier = "on", watch = "on", registry_file, windows;
    std::vector<std::string> fail, parameters, words;
    uint32_t pool = 512, timeout = 0, unplug = 0;
    bool list = false, no_low_memory = false;
    app.set_version_flag("--version", "nthost " SANLAB_VERSION);
    app.add_option("--driver", driver, "kernel driver (.sys) to load");
    app.add_option(
        "--device", device,
        "inproc[,fabric=SOCK,ip=A.B.C.D,prefix=N,revoke=key|deregister,direct=on|off,msi=on|off,vectors=N,fail-command=N,"
        "fail-status=resources|limit|no-answer,...], "
        "pci=DOMAIN:BUS:SLOT.FUNCTION[,iommu=auto|on|off,msi=on|off,dma=all|locked], or none");
    app.add_option("--path", g_loader.search,
                   "directory where DLLs are searched, besides the program's own (repeatable)");
    app.add_option("--pool", pool, "physical memory of the machine in MiB (16 to 65536)")->capture_default_str();
    app.add_option("--verifier", verifier, "on or off: checks of what the driver does")->capture_default_str();
    app.add_option(
        "--fail", fail,
        "KIND:N or KIND:p=P,seed=S: make calls fail (pool, lock, secure, map, event, thread, contiguous, access, heap; "
        "of programs: registry, catalog, driver, file)");
    app.add_option("--registry", registry_file,
                   "JSON file with registry, Winsock catalogs, devices and driver packages: read, and written at the end");
    app.add_option("--windows", windows, "directory that programs find as the Windows directory");
    app.add_option("--set", parameters, "NAME=VALUE in the device's registry key (repeatable)");
    app.add_option("--timeout", timeout, "end with status 97 after that many seconds (0: never)");
    app.add_option("--unplug", unplug,
                   "pull the device after that many milliseconds, as programs run (inproc only; 0: never)");
    app.add_option("--watch-user-memory", watch,
                   "on or off: bugcheck when the driver touches user memory outside __try (needs protection keys)");
    app.add_flag("--require-secure", g_require_secure,
                 "bugcheck when the driver locks user memory without securing it first, or unsecures it before unlocking");
    app.add_flag("--no-low-memory", no_low_memory, "all memory of the machine lies above 4 GiB (not with pci)");
    app.add_flag("--devices", g_list_devices, "list the driver's device objects before it is unloaded");
    app.add_flag("--imports", list, "print every import that nthost supplies, and end");

    // Everything behind -- belongs to the programs.
    int own = argc;
    for (int i = 1; i < argc; i++)
        if (std::string(argv[i]) == "--") {
            own = i;
            break;
        }
    for (int i = own + 1; i < argc; i++) words.push_back(argv[i]);
    try {
        app.parse(own, argv);
    } catch (const CLI::Success &e) {
        return app.exit(e);
    } catch (const CLI::ParseError &e) {
        usage_error("%s", e.what());
    }
    prepare_imports();
    if (list) {
        for (auto &i : list_imports())
            if (i.find("!nthost.") == std::string::npos) puts(i.c_str());
        return 0;
    }
    if (pool < 16 || pool > 65536) usage_error("--pool %u: expected 16 to 65536 (MiB)", pool);
    for (auto [name, value] : {std::pair{"--verifier", &verifier}, std::pair{"--watch-user-memory", &watch}})
        if (*value != "on" && *value != "off") usage_error("%s %s: expected on or off", name, value->c_str());
    g_verifier = verifier == "on";
    std::string error;
    for (auto &f : fail)
        if (!add_failure(f, &error)) usage_error("%s", error.c_str());
    if (!windows.empty() && !use_windows_directory(windows, &error)) usage_error("%s", error.c_str());
    if (!registry_file.empty() && !load_setup_state(registry_file, &error)) usage_error("%s", error.c_str());
    for (auto &p : parameters)
        if (!set_device_parameter(p)) usage_error("--set %s: expected NAME=VALUE", p.c_str());
    std::vector<Program> programs = split_programs(words);
    if (programs.empty()) usage_error("no program: expected -- PROGRAM.exe [ARGS...]");

    if (unplug != 0 && (driver.empty() || device.rfind("inproc", 0) != 0))
        usage_error("--unplug %u: takes --driver and --device inproc", unplug);
    if (no_low_memory && device.rfind("pci", 0) == 0) usage_error("--no-low-memory: not with --device pci");
    if (no_low_memory) PagePool::bus_base = uint64_t{8} << 30;
    bool physical = false;
    if (device.rfind("pci=", 0) == 0) {
        allow_huge_shared_memory();
        if (!pci_needs_physical_memory(device.substr(4), &physical, &error)) usage_error("%s", error.c_str());
    }
    start_machine(uint64_t{pool} << 20, physical ? PagePool::Frames::Physical : PagePool::Frames::Own);
    set_initial_system_process();
    install_fault_handlers();
    // It works with single steps, which a debugger would take for its own.
    if (g_verifier && watch == "on" && !under_debugger()) memory().set_user_key(watch_user_access());
    if (failure_planned(Fail::Access) && !g_user_access_watched)
        usage_error("--fail access: needs --verifier on, --watch-user-memory on and a CPU with protection keys");
    adopt_system_thread("nthost");
    start_io_manager();
    start_cpu();
    if (timeout != 0)
        std::thread([timeout] {
            for (uint32_t s = 0; s < timeout; s++) usleep_host(1000000);  // all at once: more microseconds than fit
            note("no end after %u seconds (--timeout)", timeout);
            exit_host(EXIT_TIMEOUT);
        }).detach();
    exit_host(run(programs, driver, device, unplug));
}
