// SPDX-License-Identifier: GPL-2.0-or-later
//
// ioctl.cc: IRP_MJ_DEVICE_CONTROL: every request is checked for size, version and owner here, then handed to its handler.
// The system buffer is the kernel's copy, so nothing in it changes while it is being looked at.
#include "context.h"

namespace sanproxy {

namespace {

uint32_t do_query(Context &context, void *request) {
    Device &dev = *context.device;
    auto &q = *static_cast<sanproxy_query *>(request);
    const sanproxy_header header = q.header;
    memset(&q, 0, sizeof q);
    q.header = header;
    if (dev.admin.failed()) return SANPROXY_DEVICE_FAILED;
    if (dev.info.caps & SNIC_CAP_REKEY) q.caps |= SANPROXY_CAP_CHEAP_REVOKE;
    if (dev.info.caps & SNIC_CAP_RDMA_READ) q.caps |= SANPROXY_CAP_RDMA_READ;
    q.link_up = dev.read32(SNIC_REG_STATUS) & SNIC_STATUS_LINK_UP ? 1 : 0;
    q.max_message = dev.info.max_msg_size;
    q.max_region = dev.info.max_mr_size;
    q.max_sge = dev.info.max_sge;
    q.max_wqe = dev.info.max_wqe;
    q.max_cqe = dev.info.max_cqe;
    q.max_private_data = dev.info.max_private_data;
    q.max_qp = dev.info.max_qp;
    q.max_cq = dev.info.max_cq;
    q.max_mr = dev.info.max_mr;
    const uint32_t ip = dev.read32(SNIC_REG_IP_ADDR);
    if (ip) {
        q.address_count = 1;
        q.addresses[0] = {ip, dev.read32(SNIC_REG_IP_PREFIX), dev.info.guid};
    }
    return SANPROXY_OK;
}

uint32_t do_open(Context &context, void *request) {
    Device &dev = *context.device;
    auto &open = *static_cast<sanproxy_open *>(request);
    uint32_t result;
    {
        MutexGuard guard(context.mutex);
        if (context.opened) return SANPROXY_BAD_STATE;
        context.opened = true;
        context.doorbell_page = context.pd = 0;

        Command attach(SNIC_CMD_ATTACH_DOORBELL);
        result = run(context, attach, open.header);
        if (result == SANPROXY_OK) {
            context.doorbell_page = static_cast<uint32_t>(attach.cpl.result[0]);
            Command pd(SNIC_CMD_CREATE_PD);
            result = run(context, pd, open.header);
            if (result == SANPROXY_OK) context.pd = static_cast<uint32_t>(pd.cpl.result[0]);
        }
        if (result == SANPROXY_OK) {
            const size_t offset = static_cast<size_t>(context.doorbell_page) * SNIC_PAGE_SIZE;
            if (offset + SNIC_PAGE_SIZE > dev.doorbell_bytes) {
                result = SANPROXY_DEVICE_FAILED;
            } else {
                void *page = const_cast<uint8_t *>(dev.doorbells) + offset;
                context.doorbell_mdl = IoAllocateMdl(page, SNIC_PAGE_SIZE, FALSE, FALSE, nullptr);
                if (context.doorbell_mdl) {
                    MmBuildMdlForNonPagedPool(context.doorbell_mdl);
                    context.doorbell_va = guarded_map_user(context.doorbell_mdl, MmNonCached);
                }
                if (!context.doorbell_va) result = SANPROXY_NO_RESOURCES;
            }
        }
        if (result == SANPROXY_OK) {
            open.doorbell_va = reinterpret_cast<uint64_t>(context.doorbell_va);
            open.doorbell_page = context.doorbell_page;
            return result;
        }
    }
    context_unmap(context);
    return result;
}

uint32_t do_wake(Context &context, void *) {
    post_own_event(context, SANPROXY_EVENT_WAKE);
    return SANPROXY_OK;
}

uint32_t do_close(Context &context, void *request) {
    auto &close = *static_cast<sanproxy_object *>(request);
    Object *object = object_lookup(*context.device, &context, close.id);
    if (!object) return SANPROXY_NOT_FOUND;
    uint32_t result = SANPROXY_BAD_STATE; // somebody else closes it, or a queue pair needs it
    if (object_withdraw(context, object)) {
        object_close(object);
        object_release(object); // the table's
        result = SANPROXY_OK;
    }
    object_release(object);
    return result;
}

struct Entry {
    uint32_t code;
    uint32_t size;
    Handler handler;
    bool needs_open;
};
constexpr Entry requests[] = {
    {SANPROXY_IOCTL_QUERY, sizeof(sanproxy_query), do_query, false},
    {SANPROXY_IOCTL_OPEN, sizeof(sanproxy_open), do_open, false},
    {SANPROXY_IOCTL_WAIT_EVENTS, sizeof(sanproxy_wait_events), nullptr, false},
    {SANPROXY_IOCTL_WAKE, sizeof(sanproxy_header), do_wake, false},
    {SANPROXY_IOCTL_CREATE_CQ, sizeof(sanproxy_create_cq), do_create_cq, true},
    {SANPROXY_IOCTL_CREATE_QP, sizeof(sanproxy_create_qp), do_create_qp, true},
    {SANPROXY_IOCTL_STOP_QP, sizeof(sanproxy_object), do_stop_qp, true},
    {SANPROXY_IOCTL_CLOSE, sizeof(sanproxy_object), do_close, true},
    {SANPROXY_IOCTL_REGISTER, sizeof(sanproxy_register), do_register, true},
    {SANPROXY_IOCTL_EXPOSE, sizeof(sanproxy_expose), do_expose, true},
    {SANPROXY_IOCTL_REVOKE, sizeof(sanproxy_object), do_revoke, true},
    {SANPROXY_IOCTL_LISTEN, sizeof(sanproxy_listen), do_listen, true},
    {SANPROXY_IOCTL_GET_REQUEST, sizeof(sanproxy_get_request), do_get_request, true},
    {SANPROXY_IOCTL_ACCEPT, sizeof(sanproxy_reply), do_accept, true},
    {SANPROXY_IOCTL_REJECT, sizeof(sanproxy_reply), do_reject, true},
    {SANPROXY_IOCTL_CONNECT, sizeof(sanproxy_connect), do_connect, true},
    {SANPROXY_IOCTL_DISCONNECT, sizeof(sanproxy_object), do_disconnect, true},
    {SANPROXY_IOCTL_OFFER, sizeof(sanproxy_offer), do_offer, true},
    {SANPROXY_IOCTL_LOOK, sizeof(sanproxy_offer), do_look, true},
    {SANPROXY_IOCTL_CLAIM, sizeof(sanproxy_claim), do_claim, true},
};

// The request's checks. STATUS_SUCCESS with Information 0: not to be completed by the caller.
NTSTATUS serve(Context &context, PIRP irp, PIO_STACK_LOCATION stack, bool &pended) {
    const auto &parameters = stack->Parameters.DeviceIoControl;
    const Entry *entry = nullptr;
    for (const Entry &e : requests)
        if (e.code == parameters.IoControlCode) entry = &e;
    if (!entry) return STATUS_INVALID_DEVICE_REQUEST;
    if (PsGetCurrentProcess() != context.process) return STATUS_ACCESS_DENIED;
    if (parameters.InputBufferLength != entry->size || parameters.OutputBufferLength != entry->size)
        return STATUS_INVALID_BUFFER_SIZE;
    auto *header = static_cast<sanproxy_header *>(irp->AssociatedIrp.SystemBuffer);
    if (header->size != entry->size) return STATUS_INVALID_BUFFER_SIZE;
    if (header->version != SANPROXY_VERSION) return STATUS_REVISION_MISMATCH;

    header->nic_status = 0;
    if (!entry->handler) {
        const NTSTATUS status = wait_events(context, irp);
        pended = status == STATUS_PENDING;
        if (pended) return status;
    } else if (entry->needs_open && !context.opened) {
        header->result = SANPROXY_BAD_STATE;
    } else {
        header->result = entry->handler(context, header);
    }
    irp->IoStatus.Information = entry->size;
    return STATUS_SUCCESS;
}

} // namespace

NTSTATUS dispatch_control(PDEVICE_OBJECT, PIRP irp) {
    PIO_STACK_LOCATION stack = IoGetCurrentIrpStackLocation(irp);
    auto *context = static_cast<Context *>(stack->FileObject->FsContext);
    NTSTATUS status = STATUS_FILE_CLOSED;
    irp->IoStatus.Information = 0;
    if (context && context->users.enter()) {
        bool pended = false;
        status = serve(*context, irp, stack, pended);
        context->users.leave(); // a pended request is the file object's user, and teardown cancels it
        if (pended) return STATUS_PENDING;
    }
    irp->IoStatus.Status = status;
    IoCompleteRequest(irp, IO_NO_INCREMENT);
    return status;
}

uint32_t run(Context &context, Command &command, sanproxy_header &header) {
    const uint16_t status = context.device->admin.execute(command);
    header.nic_status = status == AdminQueue::no_answer ? 0 : status;
    switch (status) {
    case SNIC_OK: return SANPROXY_OK;
    case SNIC_ERR_LIMIT:
    case SNIC_ERR_RESOURCES: return SANPROXY_NO_RESOURCES;
    case SNIC_ERR_HANDLE: return SANPROXY_GONE;
    case SNIC_ERR_STATE:
    case SNIC_ERR_IN_USE: return SANPROXY_BAD_STATE;
    case SNIC_ERR_UNSUPPORTED: return SANPROXY_UNSUPPORTED;
    case SNIC_ERR_LINK: return SANPROXY_LINK_DOWN;
    case SNIC_ERR_PARAM: return SANPROXY_BAD_PARAMETER;
    default: return SANPROXY_DEVICE_FAILED;
    }
}

} // namespace sanproxy
