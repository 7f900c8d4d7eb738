// SPDX-License-Identifier: GPL-2.0-or-later
//
// startup.cc: WSPStartupEx, the only export, and WSPCleanup. Starts are counted; the first opens the NIC, the last clean-up
// gives everything back. DllMain only constructs what needs no system service: the DLL is in every process with sockets.
#include "provider.h"

namespace sanprov {

Process *process;

namespace {

alignas(Process) unsigned char process_memory[sizeof(Process)];

constexpr WORD version_2_2 = MAKEWORD(2, 2);

// Under start_lock.
int start_first() {
    int error = process->nic.open();
    if (error) return error;
    void *memory = heap_alloc(sizeof(regcache::Cache));
    if (memory) process->cache = new (memory) regcache::Cache(process->backend);
    if (!process->cache || !process->cache->init({}) || !events_start()) {
        heap_delete(process->cache);
        process->cache = nullptr;
        process->nic.close();
        return WSAEPROVIDERFAILEDINIT;
    }
    return 0;
}

void stop_last() {
    socket_abort_all();
    events_stop();
    heap_delete(process->cache);
    process->cache = nullptr;
    process->nic.close();
}

void fill_table(WSPPROC_TABLE &table) {
    fill_unsupported(table);
    table.lpWSPAccept = san_accept;
    table.lpWSPBind = san_bind;
    table.lpWSPCleanup = san_cleanup;
    table.lpWSPCloseSocket = san_close_socket;
    table.lpWSPConnect = san_connect;
    table.lpWSPDuplicateSocket = san_duplicate_socket;
    table.lpWSPEnumNetworkEvents = san_enum_network_events;
    table.lpWSPEventSelect = san_event_select;
    table.lpWSPGetOverlappedResult = san_get_overlapped_result;
    table.lpWSPGetQOSByName = san_get_qos_by_name;
    table.lpWSPGetSockOpt = san_get_sock_opt;
    table.lpWSPIoctl = san_ioctl;
    table.lpWSPListen = san_listen;
    table.lpWSPRecv = san_recv;
    table.lpWSPSend = san_send;
    table.lpWSPSetSockOpt = san_set_sock_opt;
    table.lpWSPSocket = san_socket;
}

} // namespace

int WSPAPI san_cleanup(LPINT error) {
    Guard guard(process->start_lock);
    if (process->starts == 0) return fail(error, WSANOTINITIALISED);
    if (--process->starts == 0) stop_last();
    return 0;
}

} // namespace sanprov

extern "C" int WSPAPI WSPStartupEx(WORD version, LPWSPDATA data, LPWSAPROTOCOL_INFOW, LPWSPUPCALLTABLEEX upcalls,
                                   LPWSPPROC_TABLE table) {
    using namespace sanprov;
    if (!data || !table || !upcalls) return WSAEFAULT;
    // The extensions need 2.2, and the lowest that is served is also the highest.
    if (LOBYTE(version) < 2 || (LOBYTE(version) == 2 && HIBYTE(version) < 2)) return WSAVERNOTSUPPORTED;

    Guard guard(process->start_lock);
    if (process->starts == 0) {
        const int error = start_first();
        if (error) return error;
    }
    ++process->starts;
    process->upcalls = *upcalls; // the most recent one counts
    fill_table(*table);
    data->wVersion = data->wHighVersion = version_2_2;
    static constexpr wchar_t description[] = L"sanlab SAN service provider";
    static_assert(sizeof description <= sizeof data->szDescription);
    memcpy(data->szDescription, description, sizeof description);
    return 0;
}

extern "C" BOOL WINAPI DllMain(HINSTANCE instance, DWORD reason, LPVOID) {
    if (reason == DLL_PROCESS_ATTACH) {
        DisableThreadLibraryCalls(instance);
        sanprov::process = new (sanprov::process_memory) sanprov::Process;
    }
    return TRUE;
}
