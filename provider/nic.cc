// SPDX-License-Identifier: GPL-2.0-or-later
#include "nic.h"

namespace sanprov {

int Nic::open() {
    // Not inheritable: the driver serves only the process that opened the handle.
    file_ = CreateFileA("\\\\.\\" SANPROXY_DEVICE_NAME, GENERIC_READ | GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_WRITE,
                        nullptr, OPEN_EXISTING, FILE_FLAG_OVERLAPPED, nullptr);
    if (file_ == INVALID_HANDLE_VALUE) return WSASYSNOTREADY;
    sanproxy_open open = {};
    uint32_t result = query(limits_);
    if (result == SANPROXY_OK) result = request(SANPROXY_IOCTL_OPEN, open);
    if (result != SANPROXY_OK) {
        close();
        return result == SANPROXY_NO_RESOURCES ? WSAEPROCLIM : WSASYSNOTREADY;
    }
    doorbell_page_ = reinterpret_cast<volatile uint8_t *>(open.doorbell_va);
    return 0;
}

void Nic::close() {
    if (file_ != INVALID_HANDLE_VALUE) CloseHandle(file_);
    file_ = INVALID_HANDLE_VALUE;
    doorbell_page_ = nullptr;
    for (void *volatile &event : events_)
        if (HANDLE h = InterlockedExchangePointer(&event, nullptr)) CloseHandle(h);
}

uint32_t Nic::query(sanproxy_query &query) { return request(SANPROXY_IOCTL_QUERY, query); }

void Nic::close_object(uint32_t id) {
    if (id == 0) return;
    sanproxy_object object = {};
    object.id = id;
    request(SANPROXY_IOCTL_CLOSE, object);
}

HANDLE Nic::take_event() {
    for (void *volatile &event : events_)
        if (HANDLE h = InterlockedExchangePointer(&event, nullptr)) return h;
    return CreateEventA(nullptr, TRUE, FALSE, nullptr);
}

void Nic::give_event(HANDLE event) {
    for (void *volatile &slot : events_)
        if (!InterlockedCompareExchangePointer(&slot, event, nullptr)) return;
    CloseHandle(event);
}

uint32_t Nic::send(uint32_t code, sanproxy_header *header, uint32_t size) {
    header->version = SANPROXY_VERSION;
    header->size = size;
    header->result = header->nic_status = 0;
    OVERLAPPED overlapped = {};
    overlapped.hEvent = take_event();
    if (!overlapped.hEvent) return SANPROXY_NO_RESOURCES;
    DWORD returned = 0;
    BOOL ok = DeviceIoControl(file_, code, header, size, header, size, &returned, &overlapped);
    if (!ok && GetLastError() == ERROR_IO_PENDING) ok = GetOverlappedResult(file_, &overlapped, &returned, TRUE);
    give_event(overlapped.hEvent);
    return ok && returned == size ? header->result : static_cast<uint32_t>(SANPROXY_DEVICE_FAILED);
}

int winsock_error(uint32_t result) {
    switch (result) {
    case SANPROXY_OK: return 0;
    case SANPROXY_BAD_PARAMETER: return WSAEINVAL;
    case SANPROXY_BAD_ADDRESS: return WSAEFAULT;
    case SANPROXY_NO_RESOURCES: return WSAENOBUFS;
    case SANPROXY_UNSUPPORTED: return WSAEOPNOTSUPP;
    case SANPROXY_NOT_FOUND:
    case SANPROXY_GONE: return WSAECONNABORTED;
    case SANPROXY_BAD_STATE: return WSAEINVAL;
    default: return WSAENETDOWN;
    }
}

} // namespace sanprov
