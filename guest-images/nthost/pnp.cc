// SPDX-License-Identifier: GPL-2.0-or-later
#include "pnp.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu.h"
#include "device.h"
#include "imports.h"
#include "io.h"
#include "pe_image.h"
#include "process.h"
#include "registry.h"
#include "stack_trace.h"
#include "user.h"
#include "verifier.h"

namespace nth {

using namespace nt;

bool g_message_interrupts = true;
bool g_list_devices = false;
std::unique_ptr<Device> g_device;

namespace {

DRIVER_OBJECT *g_driver;
Image *g_driver_image;
DRIVER_OBJECT *g_bus_driver;
DEVICE_OBJECT *g_pdo;
bool g_started, g_removed;
constexpr uint32_t PNP_TAG = 0x20706e50;

struct Interface {
    std::u16string name;
    GUID guid;
    DEVICE_OBJECT *pdo;
    bool enabled;
};
FutexLock g_interface_lock;
std::vector<Interface> g_interfaces;

// ---- the bus driver's side of the PDO

NTSTATUS finish(IRP *irp, NTSTATUS s) {
    irp->IoStatus.Status = s;
    complete_irp(irp);
    return s;
}

ULONG NTAPI get_bus_data(void *, ULONG, void *buffer, ULONG offset, ULONG length) {
    g_device->read_config(offset, buffer, length);
    return length;
}
ULONG NTAPI set_bus_data(void *, ULONG, void *buffer, ULONG offset, ULONG length) {
    g_device->write_config(offset, buffer, length);
    return length;
}
void NTAPI interface_reference(void *) {}

const GUID kBusInterfaceStandard = {0x496b8280, 0x6f25, 0x11d0, {0xbe, 0xaf, 0x08, 0x00, 0x2b, 0xe2, 0x09, 0x2f}};

NTSTATUS query_interface(IO_STACK_LOCATION *sl, NTSTATUS unhandled) {
    auto &q = sl->Parameters.QueryInterface;
    if (!(*q.InterfaceType == kBusInterfaceStandard)) return unhandled;
    if (q.Size < sizeof(BUS_INTERFACE_STANDARD) || g_device == nullptr) return STATUS_INVALID_PARAMETER;
    auto *b = static_cast<BUS_INTERFACE_STANDARD *>(q.Interface);
    *b = {sizeof *b,
          1,
          g_pdo,
          reinterpret_cast<void *>(interface_reference),
          reinterpret_cast<void *>(interface_reference),
          nullptr,
          nullptr,
          reinterpret_cast<void *>(set_bus_data),
          reinterpret_cast<void *>(get_bus_data)};
    return STATUS_SUCCESS;
}

// Answers of the function that the QUERY_ID minor asks for: 0 device, 1 hardware, 2 compatible, 3 instance.
NTSTATUS query_id(IRP *irp, ULONG type) {
    uint32_t id = 0xffffffff;
    if (g_device != nullptr) g_device->read_config(0, &id, 4);
    char text[64];
    if (type == 3) snprintf(text, sizeof text, "0");
    else snprintf(text, sizeof text, "PCI\\VEN_%04X&DEV_%04X", id & 0xffff, id >> 16);
    std::u16string w = widen(text);
    w.append(2, 0);
    auto *p = static_cast<WCHAR *>(pool_allocate(w.size() * 2, PNP_TAG, false));
    if (p == nullptr) return STATUS_INSUFFICIENT_RESOURCES;
    memcpy(p, w.data(), w.size() * 2);
    irp->IoStatus.Information = reinterpret_cast<uint64_t>(p);
    return STATUS_SUCCESS;
}

NTSTATUS query_capabilities(IO_STACK_LOCATION *sl) {
    auto *c = static_cast<uint8_t *>(sl->Parameters.DeviceCapabilities.Capabilities);
    uint32_t unknown = 0xffffffff;
    memcpy(c + 8, &unknown, 4);                  // Address
    memcpy(c + 12, &unknown, 4);                 // UINumber
    uint32_t states[7] = {0, 1, 4, 4, 4, 4, 4};  // system S0 is D0, the sleeping ones D3
    memcpy(c + 16, states, sizeof states);
    return STATUS_SUCCESS;
}

NTSTATUS NTAPI pdo_pnp(DEVICE_OBJECT *, IRP *irp) {
    IO_STACK_LOCATION *sl = current_location(irp);
    switch (sl->MinorFunction) {
        case IRP_MN_START_DEVICE:
        case IRP_MN_QUERY_REMOVE_DEVICE:
        case IRP_MN_REMOVE_DEVICE:
        case IRP_MN_CANCEL_REMOVE_DEVICE:
        case IRP_MN_STOP_DEVICE:
        case IRP_MN_QUERY_STOP_DEVICE:
        case IRP_MN_CANCEL_STOP_DEVICE:
        case IRP_MN_SURPRISE_REMOVAL: return finish(irp, STATUS_SUCCESS);
        case IRP_MN_QUERY_CAPABILITIES: return finish(irp, query_capabilities(sl));
        case IRP_MN_QUERY_INTERFACE: return finish(irp, query_interface(sl, irp->IoStatus.Status));
        case IRP_MN_QUERY_ID: return finish(irp, query_id(irp, sl->Parameters.QueryId.IdType));
        case IRP_MN_READ_CONFIG:
        case IRP_MN_WRITE_CONFIG: {
            auto &c = sl->Parameters.ReadWriteConfig;
            if (g_device == nullptr) return finish(irp, STATUS_NO_SUCH_DEVICE);
            if (sl->MinorFunction == IRP_MN_READ_CONFIG) g_device->read_config(c.Offset, c.Buffer, c.Length);
            else g_device->write_config(c.Offset, c.Buffer, c.Length);
            irp->IoStatus.Information = c.Length;
            return finish(irp, STATUS_SUCCESS);
        }
        default: return finish(irp, irp->IoStatus.Status);  // as a bus driver has to: leave it alone
    }
}

NTSTATUS NTAPI pdo_power(DEVICE_OBJECT *, IRP *irp) {
    return finish(irp, STATUS_SUCCESS);
}

// ---- resources

std::vector<uint8_t> resource_list(bool translated) {
    std::vector<CM_PARTIAL_RESOURCE_DESCRIPTOR> d;
    for (const Device::Bar &b : g_device->bars()) {
        CM_PARTIAL_RESOURCE_DESCRIPTOR r{};
        r.Type = CmResourceTypeMemory;
        r.ShareDisposition = 1;  // device exclusive
        r.Flags = CM_RESOURCE_MEMORY_READ_WRITE | CM_RESOURCE_MEMORY_BAR_64;
        r.u.Memory.Start = static_cast<int64_t>(b.bus);
        r.u.Memory.Length = static_cast<ULONG>(b.size);
        d.push_back(r);
    }
    if (g_message_interrupts && g_device->vectors() != 0) {
        for (unsigned i = 0; i < g_device->vectors(); i++) {
            CM_PARTIAL_RESOURCE_DESCRIPTOR r{};
            r.Type = CmResourceTypeInterrupt;
            r.ShareDisposition = 1;
            r.Flags = CM_RESOURCE_INTERRUPT_LATCHED | CM_RESOURCE_INTERRUPT_MESSAGE;
            if (translated) {
                r.u.Interrupt.Level = DEVICE_LEVEL;
                r.u.Interrupt.Vector = LINE_VECTOR + 1 + i;
                r.u.Interrupt.Affinity = 1;
            } else {
                r.u.MessageRaw.MessageCount = static_cast<USHORT>(g_device->vectors());
                r.u.MessageRaw.Vector = LINE_VECTOR + 1 + i;
                r.u.MessageRaw.Affinity = 1;
            }
            d.push_back(r);
        }
    } else {
        CM_PARTIAL_RESOURCE_DESCRIPTOR r{};
        r.Type = CmResourceTypeInterrupt;
        r.ShareDisposition = 3;  // shared
        r.Flags = CM_RESOURCE_INTERRUPT_LEVEL_SENSITIVE;
        r.u.Interrupt.Level = translated ? DEVICE_LEVEL : 11;
        r.u.Interrupt.Vector = translated ? LINE_VECTOR : 11;
        r.u.Interrupt.Affinity = 1;
        d.push_back(r);
    }
    CM_RESOURCE_LIST_HEAD h{1, 5, 0, 1, 1, static_cast<ULONG>(d.size())};
    std::vector<uint8_t> out(sizeof h + d.size() * sizeof d[0]);
    memcpy(out.data(), &h, sizeof h);
    memcpy(out.data() + sizeof h, d.data(), d.size() * sizeof d[0]);
    return out;
}

NTSTATUS pnp_irp(uint8_t minor, uint64_t *information = nullptr) {
    DEVICE_OBJECT *top = top_of_stack(g_pdo);
    NTSTATUS s = send_irp(top, IRP_MJ_PNP, minor, STATUS_NOT_SUPPORTED, information, [](IRP *, IO_STACK_LOCATION *) {});
    object_release(top);
    return s;
}

NTSTATUS start_device() {
    std::vector<uint8_t> raw = resource_list(false), translated = resource_list(true);
    // The lists belong to the system and are nonpaged.
    void *r = pool_allocate(raw.size(), PNP_TAG, false), *t = pool_allocate(translated.size(), PNP_TAG, false);
    memcpy(r, raw.data(), raw.size());
    memcpy(t, translated.data(), translated.size());
    DEVICE_OBJECT *top = top_of_stack(g_pdo);
    NTSTATUS s = send_irp(top, IRP_MJ_PNP, IRP_MN_START_DEVICE, STATUS_NOT_SUPPORTED, nullptr,
                          [&](IRP *, IO_STACK_LOCATION *sl) {
                              sl->Parameters.StartDevice = {r, t};
                          });
    object_release(top);
    pool_free(r, PNP_TAG, true);
    pool_free(t, PNP_TAG, true);
    return s;
}

[[noreturn]] void describe_failure(const char *what, NTSTATUS s) {
    const char *name = status_name(s);
    note("%s: %s failed with 0x%08X%s%s", g_driver_image->name.c_str(), what, uint32_t(s), name ? " " : "",
         name ? name : "");
    exit_host(1);
}

}  // namespace

bool driver_loaded() {
    return g_driver != nullptr;
}

void load_driver(const std::string &path) {
    std::string error;
    Image *image = map_image(memory(), path, nullptr, &error);
    if (image == nullptr) usage_error("%s", error.c_str());
    if (image->is_dll || image->subsystem != SUBSYSTEM_NATIVE)
        usage_error("%s is a %s, not a driver", path.c_str(), image->is_dll ? "DLL" : "program");
    if (image->entry == 0) usage_error("%s has no entry point", path.c_str());
    std::vector<std::string> missing;
    bind_imports(
        *image,
        [](const std::string &module, const std::string &symbol) {
            return reinterpret_cast<uint64_t>(find_import(module, symbol));
        },
        &missing);
    if (!missing.empty()) report_missing_imports(path, missing);
    protect_image(memory(), *image);
    g_driver_image = image;

    std::string name = image->name.substr(0, image->name.find('.'));
    registry().create_key(DEVICE_KEY);
    registry().create_key(DRIVER_KEY);
    std::string service = "\\Registry\\Machine\\System\\CurrentControlSet\\Services\\" + name;
    registry().create_key(service);
    registry().create_key(service + "\\Parameters");
    std::u16string wide = widen(service);
    auto *text = static_cast<WCHAR *>(pool_allocate(wide.size() * 2 + 2, PNP_TAG, false));
    memcpy(text, wide.c_str(), wide.size() * 2 + 2);
    UNICODE_STRING path_string{static_cast<USHORT>(wide.size() * 2), static_cast<USHORT>(wide.size() * 2 + 2), text};

    g_driver = create_driver(name, image->base, image->size);
    g_driver->DriverInit = reinterpret_cast<decltype(g_driver->DriverInit)>(image->entry);
    NTSTATUS s = call_pe(g_driver->DriverInit, g_driver, &path_string);
    pool_free(text, PNP_TAG, true);
    if (!nt_success(s)) describe_failure("DriverEntry", s);
    for (DEVICE_OBJECT *d = g_driver->DeviceObject; d != nullptr; d = d->NextDevice)
        d->Flags &= ~DO_DEVICE_INITIALIZING;
    auto *add = g_driver->DriverExtension->AddDevice;
    if (add == nullptr || g_device == nullptr) return;

    g_bus_driver = create_driver("nthost_pci", 0, 0);
    g_bus_driver->MajorFunction[IRP_MJ_PNP] = pdo_pnp;
    g_bus_driver->MajorFunction[IRP_MJ_POWER] = pdo_power;
    UNICODE_STRING none{};
    s = create_device(g_bus_driver, 0, &none, 0x22, 0, false, &g_pdo);
    if (!nt_success(s)) host_bug("no kernel memory for the PDO");
    g_pdo->Flags = (g_pdo->Flags & ~DO_DEVICE_INITIALIZING) | DO_BUS_ENUMERATED_DEVICE;
    s = call_pe(add, g_driver, g_pdo);
    if (!nt_success(s)) describe_failure("AddDevice", s);
    pnp_irp(IRP_MN_FILTER_RESOURCE_REQUIREMENTS);
    s = start_device();
    if (!nt_success(s)) {
        // As the PnP manager does: a device that did not start is removed, and the driver with it.
        pnp_irp(IRP_MN_REMOVE_DEVICE);
        const char *text_name = status_name(s);
        note("%s: IRP_MN_START_DEVICE failed with 0x%08X%s%s", image->name.c_str(), uint32_t(s), text_name ? " " : "",
             text_name ? text_name : "");
        unload_driver();
        exit_host(1);
    }
    g_started = true;
    struct {
        uint16_t size = 64, version = 1;
        uint32_t rest[15] = {};
    } capabilities;
    DEVICE_OBJECT *top = top_of_stack(g_pdo);
    send_irp(top, IRP_MJ_PNP, IRP_MN_QUERY_CAPABILITIES, STATUS_NOT_SUPPORTED, nullptr,
             [&](IRP *, IO_STACK_LOCATION *sl) { sl->Parameters.DeviceCapabilities.Capabilities = &capabilities; });
    pnp_irp(IRP_MN_QUERY_PNP_DEVICE_STATE);
    uint64_t relations = 0;
    send_irp(top, IRP_MJ_PNP, IRP_MN_QUERY_DEVICE_RELATIONS, STATUS_NOT_SUPPORTED, &relations,
             [](IRP *, IO_STACK_LOCATION *sl) { sl->Parameters.QueryDeviceRelations.Type = 0; });
    object_release(top);
}

void unplug_device() {
    if (!g_started || !g_device->unplug()) return;
    note("the device was pulled");
    g_removed = true;
    pnp_irp(IRP_MN_SURPRISE_REMOVAL);
}

// One line for each device object of the driver: what a debugger's !devobj would tell.
static void list_devices() {
    constexpr std::pair<ULONG, const char *> names[] = {{DO_BUFFERED_IO, "DO_BUFFERED_IO"}, {DO_DIRECT_IO, "DO_DIRECT_IO"},
                                                        {DO_POWER_PAGABLE, "DO_POWER_PAGABLE"},
                                                        {DO_DEVICE_INITIALIZING, "DO_DEVICE_INITIALIZING"}};
    for (DEVICE_OBJECT *d = g_driver->DeviceObject; d != nullptr; d = d->NextDevice) {
        std::string flags;
        for (auto [bit, name] : names)
            if (d->Flags & bit) flags += std::string(flags.empty() ? "" : " ") + name;
        note("device of %s: type 0x%x, flags 0x%x (%s)", g_driver_image->name.c_str(), d->DeviceType, d->Flags, flags.c_str());
    }
}

void unload_driver() {
    if (g_driver == nullptr) return;
    if (g_list_devices) list_devices();
    if (g_started && g_removed) {
        pnp_irp(IRP_MN_REMOVE_DEVICE);  // all handles are closed by now
    } else if (g_started) {
        NTSTATUS s = pnp_irp(IRP_MN_QUERY_REMOVE_DEVICE);
        if (nt_success(s) || s == STATUS_NOT_SUPPORTED) {
            pnp_irp(IRP_MN_REMOVE_DEVICE);
        } else {
            note("%s refuses removal with 0x%08X: surprise removal instead", g_driver_image->name.c_str(), uint32_t(s));
            pnp_irp(IRP_MN_CANCEL_REMOVE_DEVICE);
            pnp_irp(IRP_MN_SURPRISE_REMOVAL);
            pnp_irp(IRP_MN_REMOVE_DEVICE);
        }
    }
    g_started = false;
    flush_work();
    flush_dpcs();
    if (g_driver->DriverUnload == nullptr) {
        if (g_verifier)
            note("%s has no DriverUnload: it stays loaded, and what it left is not looked for",
                 g_driver_image->name.c_str());
        return;
    }
    call_pe(g_driver->DriverUnload, g_driver);
    flush_work();
    flush_dpcs();
    std::string leaks = driver_leaks();
    auto add = [&](const std::string &s) { leaks += (leaks.empty() ? "" : "; ") + s; };
    if (g_driver->DeviceObject != nullptr) add("device objects");
    if (connected_interrupts() != 0) add("connected interrupts");
    if (process_notify_count() != 0) add("process notify routines");
    if (timer_armed_in(g_driver_image->base, g_driver_image->base + g_driver_image->size))
        add("armed timers in its data");
    for (auto &l : name_space().links()) add("symbolic link " + l);
    for (auto &i : g_interfaces)
        if (i.enabled) add("enabled device interface");
    {
        Locked l(system_process()->lock);
        for (Thread *t : system_process()->threads)
            if (g_driver_image->contains(t->start)) add("system thread at " + describe_address(t->start));
    }
    if (!leaks.empty() && g_verifier)
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "%s was unloaded and left: %s",
                 g_driver_image->name.c_str(), leaks.c_str());
    if (g_pdo != nullptr) delete_device(g_pdo);
    g_pdo = nullptr;
    g_driver = nullptr;
}

// ---- interfaces

NTSTATUS register_interface(DEVICE_OBJECT *pdo, const GUID &g, UNICODE_STRING *out) {
    if (pdo != g_pdo) return STATUS_INVALID_DEVICE_REQUEST;
    char text[160];
    snprintf(text, sizeof text, "\\??\\PCI#nthost#0#{%08x-%04x-%04x-%02x%02x-%02x%02x%02x%02x%02x%02x}", g.Data1,
             g.Data2, g.Data3, g.Data4[0], g.Data4[1], g.Data4[2], g.Data4[3], g.Data4[4], g.Data4[5], g.Data4[6],
             g.Data4[7]);
    std::u16string name = widen(text);
    auto *p =
        static_cast<WCHAR *>(pool_allocate(name.size() * 2 + 2, 0x66497744, true));  // freed by RtlFreeUnicodeString
    if (p == nullptr) return STATUS_INSUFFICIENT_RESOURCES;
    memcpy(p, name.c_str(), name.size() * 2 + 2);
    *out = {static_cast<USHORT>(name.size() * 2), static_cast<USHORT>(name.size() * 2 + 2), p};
    Locked l(g_interface_lock);
    for (auto &i : g_interfaces)
        if (i.name == name) return STATUS_SUCCESS;
    g_interfaces.push_back({name, g, pdo, false});
    return STATUS_SUCCESS;
}

NTSTATUS set_interface_state(const std::u16string &name, bool enable) {
    Locked l(g_interface_lock);
    for (auto &i : g_interfaces) {
        if (i.name != name) continue;
        if (i.enabled == enable) return enable ? STATUS_SUCCESS : STATUS_OBJECT_NAME_NOT_FOUND;
        if (enable) {
            // The link leads to the PDO; opening it sends IRPs to the top of its stack.
            std::u16string target = u"\\device\\nthostpdo";
            if (void *o = name_space().lookup(target)) object_release(o);
            else name_space().insert(target, i.pdo);
            name_space().link(name, target);
        } else {
            name_space().unlink(name);
            name_space().remove_body(i.pdo);
        }
        i.enabled = enable;
        return STATUS_SUCCESS;
    }
    return STATUS_OBJECT_NAME_NOT_FOUND;
}

std::vector<std::u16string> enabled_interfaces(const GUID &guid) {
    Locked l(g_interface_lock);
    std::vector<std::u16string> out;
    for (auto &i : g_interfaces)
        if (i.enabled && i.guid == guid) out.push_back(i.name);
    return out;
}

NTSTATUS device_property(DEVICE_OBJECT *, int property, uint32_t size, void *out, uint32_t *needed) {
    std::vector<uint8_t> v;
    auto number = [&](uint32_t n) { v.assign(reinterpret_cast<uint8_t *>(&n), reinterpret_cast<uint8_t *>(&n) + 4); };
    auto text = [&](const char *t) {
        std::u16string w = widen(t);
        v.resize(w.size() * 2 + 2);
        memcpy(v.data(), w.c_str(), v.size());
    };
    switch (property) {
        case 0: text("SAN network interface"); break;   // description
        case 1: text("PCI\\VEN_1234&DEV_5A4E"); break;  // hardware id
        case 11: text("\\Device\\nthostpdo"); break;    // physical device object name
        case 13: number(5); break;                      // legacy bus type: PCI
        case 14: number(0); break;                      // bus number
        case 16: number(5 << 16); break;                // address: device 5, function 0
        default: return STATUS_OBJECT_NAME_NOT_FOUND;
    }
    *needed = static_cast<uint32_t>(v.size());
    if (size < v.size()) return STATUS_BUFFER_TOO_SMALL;
    memcpy(out, v.data(), v.size());
    return STATUS_SUCCESS;
}

}  // namespace nth
