// SPDX-License-Identifier: GPL-2.0-or-later
//
// setupapi.dll and newdev.dll are loaded when they are needed: sanctl starts, and says what it lacks, everywhere.
#include "system.h"

#include <setupapi.h>

namespace sanctl::driver {

namespace {

// cfgmgr32.h and newdev.h, as far as needed.
constexpr DWORD force_install = 1;         // INSTALLFLAG_FORCE
constexpr DWORD ask_nothing = 4;           // INSTALLFLAG_NONINTERACTIVE: where Windows would ask, it fails
constexpr DWORD force_delete = 1;          // SUOI_FORCEDELETE
constexpr DWORD no_such_device = 0xE000020B; // ERROR_NO_SUCH_DEVINST

using CopyInf = BOOL(WINAPI *)(PCWSTR, PCWSTR, DWORD, DWORD, PWSTR, DWORD, PDWORD, PWSTR *);
using UninstallInf = BOOL(WINAPI *)(PCWSTR, DWORD, PVOID);
using Update = BOOL(WINAPI *)(HWND, LPCWSTR, LPCWSTR, DWORD, PBOOL);
using GetDevices = HDEVINFO(WINAPI *)(const GUID *, PCWSTR, HWND, DWORD);
using EnumDevice = BOOL(WINAPI *)(HDEVINFO, DWORD, PSP_DEVINFO_DATA);
using GetProperty = BOOL(WINAPI *)(HDEVINFO, PSP_DEVINFO_DATA, DWORD, PDWORD, PBYTE, DWORD, PDWORD);
using CallInstaller = BOOL(WINAPI *)(DI_FUNCTION, HDEVINFO, PSP_DEVINFO_DATA);
using SetNonInteractive = BOOL(WINAPI *)(BOOL);
using FreeDevices = BOOL(WINAPI *)(HDEVINFO);
using LocateNode = DWORD(WINAPI *)(PDWORD, LPWSTR, ULONG);
using ScanNode = DWORD(WINAPI *)(DWORD, ULONG);

template <typename F> F function(const wchar_t *library, const char *name) {
    const HMODULE module = system_library(library);
    return module ? reinterpret_cast<F>(reinterpret_cast<void *>(GetProcAddress(module, name))) : nullptr;
}
template <typename F> F setup(const char *name) { return function<F>(L"setupapi.dll", name); }

DWORD last_unless(BOOL ok) {
    if (ok) return 0;
    const DWORD error = GetLastError();
    return error ? error : ERROR_GEN_FAILURE;
}

struct DeviceApi {
    GetDevices get = setup<GetDevices>("SetupDiGetClassDevsW");
    EnumDevice next = setup<EnumDevice>("SetupDiEnumDeviceInfo");
    GetProperty property = setup<GetProperty>("SetupDiGetDeviceRegistryPropertyW");
    CallInstaller call = setup<CallInstaller>("SetupDiCallClassInstaller");
    FreeDevices release = setup<FreeDevices>("SetupDiDestroyDeviceInfoList");
    bool complete() const { return get && next && property && call && release; }
};

// A list of strings; empty when the device lacks the property.
DWORD texts(const DeviceApi &api, HDEVINFO set, SP_DEVINFO_DATA &device, DWORD which, std::vector<std::wstring> &out) {
    wchar_t text[2048] = {};
    DWORD needed = 0;
    out.clear();
    if (!api.property(set, &device, which, nullptr, reinterpret_cast<BYTE *>(text), sizeof text - 2 * sizeof text[0], &needed)) {
        const DWORD error = GetLastError();
        return error == ERROR_INVALID_DATA || error == ERROR_INSUFFICIENT_BUFFER ? 0 : error;
    }
    for (const wchar_t *at = text; *at; at += out.back().size() + 1) out.push_back(at);
    return 0;
}

// Calls visit(set, device, bound) for each device with the hardware id.
template <typename Visit> DWORD each_device(const wchar_t *hardware_id, const wchar_t *service, Visit visit) {
    const DeviceApi api;
    if (!api.complete()) return ERROR_CALL_NOT_IMPLEMENTED;
    const HDEVINFO set = api.get(nullptr, L"PCI", nullptr, DIGCF_ALLCLASSES | DIGCF_PRESENT);
    if (set == INVALID_HANDLE_VALUE) return last_unless(FALSE);
    DWORD error = 0;
    for (DWORD i = 0; !error; ++i) {
        SP_DEVINFO_DATA device = {};
        device.cbSize = sizeof device;
        if (!api.next(set, i, &device)) {
            error = GetLastError();
            if (error == ERROR_NO_MORE_ITEMS) error = 0;
            break;
        }
        std::vector<std::wstring> ids, services;
        error = texts(api, set, device, SPDRP_HARDWAREID, ids);
        bool ours = false;
        for (const std::wstring &id : ids) ours = ours || _wcsicmp(id.c_str(), hardware_id) == 0;
        if (error || !ours) continue;
        error = texts(api, set, device, SPDRP_SERVICE, services);
        if (!error) error = visit(api, set, device, !services.empty() && _wcsicmp(services[0].c_str(), service) == 0);
    }
    api.release(set);
    return error;
}

class Service {
  public:
    DWORD open_manager(DWORD access) {
        manager_ = OpenSCManagerW(nullptr, nullptr, access);
        return last_unless(manager_ != nullptr);
    }
    DWORD open(const wchar_t *name, DWORD access) {
        service_ = OpenServiceW(manager_, name, access);
        return last_unless(service_ != nullptr);
    }
    ~Service() {
        if (service_) CloseServiceHandle(service_);
        if (manager_) CloseServiceHandle(manager_);
    }
    SC_HANDLE manager() const { return manager_; }
    SC_HANDLE service() const { return service_; }

  private:
    SC_HANDLE manager_ = nullptr, service_ = nullptr;
};

} // namespace

DWORD add_package(const std::wstring &inf, std::wstring &name) {
    const auto copy = setup<CopyInf>("SetupCopyOEMInfW");
    if (!copy) return ERROR_CALL_NOT_IMPLEMENTED;
    if (const auto quiet = setup<SetNonInteractive>("SetupSetNonInteractiveMode")) quiet(TRUE);
    const std::wstring media = inf.substr(0, inf.find_last_of(L"\\/"));
    wchar_t target[MAX_PATH] = {};
    DWORD needed = 0;
    wchar_t *file = nullptr;
    const DWORD error = last_unless(copy(inf.c_str(), media.c_str(), SPOST_PATH, 0, target, MAX_PATH, &needed, &file));
    if (!error && file) name = file;
    return error;
}

DWORD remove_package(const std::wstring &name) {
    const auto uninstall = setup<UninstallInf>("SetupUninstallOEMInfW");
    return uninstall ? last_unless(uninstall(name.c_str(), force_delete, nullptr)) : ERROR_CALL_NOT_IMPLEMENTED;
}

DWORD find_devices(const wchar_t *hardware_id, const wchar_t *service, Devices &devices) {
    devices = {};
    return each_device(hardware_id, service, [&](const DeviceApi &, HDEVINFO, SP_DEVINFO_DATA &, bool bound) -> DWORD {
        ++devices.present;
        devices.bound += bound;
        return 0;
    });
}

DWORD update_devices(const wchar_t *hardware_id, const std::wstring &inf, bool &restart) {
    const auto update = function<Update>(L"newdev.dll", "UpdateDriverForPlugAndPlayDevicesW");
    if (!update) return ERROR_CALL_NOT_IMPLEMENTED;
    BOOL reboot = FALSE;
    const DWORD error = last_unless(update(nullptr, hardware_id, inf.c_str(), force_install | ask_nothing, &reboot));
    restart = restart || reboot;
    return error == no_such_device ? 0 : error; // gone meanwhile: it finds its driver when it returns
}

DWORD remove_devices(const wchar_t *hardware_id, const wchar_t *service) {
    return each_device(hardware_id, service, [&](const DeviceApi &api, HDEVINFO set, SP_DEVINFO_DATA &device, bool bound) -> DWORD {
        return bound ? last_unless(api.call(DIF_REMOVE, set, &device)) : 0;
    });
}

DWORD rescan() {
    const auto locate = setup<LocateNode>("CM_Locate_DevNodeW");
    const auto scan = setup<ScanNode>("CM_Reenumerate_DevNode");
    if (!locate || !scan) return ERROR_CALL_NOT_IMPLEMENTED;
    DWORD root = 0;
    // They have error codes of their own, with no text; what matters is that it did not happen.
    if (locate(&root, nullptr, 0) != 0 || scan(root, 0) != 0) return ERROR_GEN_FAILURE;
    return 0;
}

DWORD service_exists(const wchar_t *name, bool &there) {
    Service s;
    there = false;
    DWORD error = s.open_manager(SC_MANAGER_CONNECT);
    if (!error) error = s.open(name, SERVICE_QUERY_CONFIG);
    there = !error;
    return error == ERROR_SERVICE_DOES_NOT_EXIST ? 0 : error;
}

DWORD create_service(const wchar_t *name, const wchar_t *text, const wchar_t *image_path) {
    Service s;
    const DWORD error = s.open_manager(SC_MANAGER_CREATE_SERVICE);
    if (error) return error;
    const SC_HANDLE made = CreateServiceW(s.manager(), name, text, SERVICE_QUERY_CONFIG, SERVICE_KERNEL_DRIVER, SERVICE_DEMAND_START,
                                          SERVICE_ERROR_NORMAL, image_path, nullptr, nullptr, nullptr, nullptr, nullptr);
    if (!made) return last_unless(FALSE);
    CloseServiceHandle(made);
    return 0;
}

DWORD delete_service(const wchar_t *name) {
    Service s;
    DWORD error = s.open_manager(SC_MANAGER_CONNECT);
    if (!error) error = s.open(name, DELETE);
    if (!error) error = last_unless(DeleteService(s.service()));
    // Marked: it goes when the driver's last handle does.
    return error == ERROR_SERVICE_DOES_NOT_EXIST || error == ERROR_SERVICE_MARKED_FOR_DELETE ? 0 : error;
}

} // namespace sanctl::driver
