// SPDX-License-Identifier: GPL-2.0-or-later
//
// data.cc: WSPSend, WSPRecv, WSPRdmaWrite, WSPRdmaRead. Each checks, builds its operations and posts them: no system call.
// The immediate result is always WSA_IO_PENDING or an error after which no completion follows.
#include "provider.h"

namespace sanprov {

namespace {

// Under s.lock. 0 or why nothing can be posted now.
int check_connected(const Socket &s, bool receive) {
    switch (s.state) {
    case State::connected: return 0;
    case State::connecting: return receive ? 0 : WSAENOTCONN;
    case State::disconnected: return s.error ? s.error : WSAECONNRESET;
    case State::closed: return WSAENOTSOCK;
    default: return WSAENOTCONN;
    }
}

void attach(Operation &op, const Registration &r, uint64_t start, uint32_t length) {
    op.sge[op.sges] = {start, r.entry->key(), length, 0};
    op.registrations[op.sges] = const_cast<Registration *>(&r);
    ++op.registrations[op.sges]->in_use;
    ++op.sges;
}

// This operation is the one whose completion ends what the switch has asked for.
void carry(Operation &op, WSAOVERLAPPED *overlapped, DWORD flags, uint64_t total) {
    op.overlapped = overlapped;
    op.notified = !(reinterpret_cast<uintptr_t>(overlapped->hEvent) & 1);
    op.bytes = static_cast<uint32_t>(total);
    op.flags = flags;
}

// One message or one receive. `right`: what the NIC does with the memory, MEM_READ or MEM_WRITE.
int post_message(Socket &s, Ring &ring, uint8_t opcode, uint32_t right, LPWSABUF buffers, DWORD count, DWORD flags,
                 LPWSAOVERLAPPED overlapped) {
    const sanproxy_query &limits = process->nic.limits();
    Guard guard(s.lock);
    const int problem = check_connected(s, opcode == SNIC_WR_RECV);
    if (problem) return problem;
    Operation *op = operation_new(s);
    if (!op) return WSAENOBUFS;
    op->opcode = opcode;
    uint64_t total = 0;
    int error = 0;
    for (DWORD i = 0; i < count && !error; ++i) {
        if (buffers[i].len == 0) continue;
        const uint64_t start = address_of(buffers[i].buf);
        total += buffers[i].len;
        const Registration *r = find_local(s, start, buffers[i].len, right);
        if (!r)
            error = WSAEFAULT; // not in memory that was registered on this socket for that
        else if (op->sges == SNIC_MAX_SGE || op->sges == limits.max_sge)
            error = WSAEINVAL;
        else
            attach(*op, *r, start, buffers[i].len);
    }
    if (!error && (total > limits.max_message || total > UINT32_MAX)) error = WSAEMSGSIZE;
    if (error) {
        operation_free(s, op);
        return error;
    }
    carry(*op, overlapped, flags, total);
    if (opcode == SNIC_WR_SEND && s.read_unfenced) {
        // The peer may take the message as leave to withdraw the buffer that is being read.
        op->wqe_flags |= SNIC_WQE_FENCE;
        s.read_unfenced = false;
    }
    begin_overlapped(overlapped);
    post(s, ring, op);
    if (op->notified && s.harvest_depth == 0) arm_if_needed(s);
    return WSA_IO_PENDING;
}

void free_chain(Socket &s, Queue<Operation> &chain) {
    while (Operation *op = chain.pop()) operation_free(s, op);
}

// nullptr: no memory.
Operation *add_piece(Socket &s, Queue<Operation> &chain, uint8_t opcode, const Descriptor &target, uint64_t offset) {
    Operation *op = operation_new(s);
    if (!op) return nullptr;
    op->opcode = opcode;
    op->remote_va = target.va + offset;
    op->rkey = target.key;
    chain.push(op);
    return op;
}

// Cuts the buffers into operations of at most max_sge pieces. 0 or a Winsock error.
int build_rdma(Socket &s, Queue<Operation> &chain, uint8_t opcode, LPWSABUFEX buffers, DWORD count,
               const Descriptor &target, uint64_t offset) {
    const uint32_t right = opcode == SNIC_WR_RDMA_WRITE ? MEM_READ : MEM_WRITE;
    const uint32_t max_sge = process->nic.limits().max_sge < SNIC_MAX_SGE ? process->nic.limits().max_sge : SNIC_MAX_SGE;
    Operation *op = nullptr;
    for (DWORD i = 0; i < count; ++i) {
        if (buffers[i].len == 0) continue;
        const uint64_t start = address_of(buffers[i].buf);
        const uint64_t last = start + (buffers[i].len - 1);
        Registration *r = find_handle(s, buffers[i].handle);
        if (!r || r->remote || start < r->first || last > r->last || last < start) return WSAEINVAL;
        if (!r->entry->usable() || !(r->entry->rights() & right)) return WSAEFAULT;
        if (!op || op->sges == max_sge) {
            op = add_piece(s, chain, opcode, target, offset);
            if (!op) return WSAENOBUFS;
        }
        attach(*op, *r, start, buffers[i].len);
        offset += buffers[i].len;
    }
    // Nothing to move: still an operation that completes.
    if (chain.empty() && !add_piece(s, chain, opcode, target, offset)) return WSAENOBUFS;
    return 0;
}

int post_rdma(Socket &s, uint8_t opcode, LPWSABUFEX buffers, DWORD count, const void *descriptor, DWORD descriptor_length,
              DWORD offset, DWORD flags, LPWSAOVERLAPPED overlapped) {
    Descriptor target;
    if (!descriptor || descriptor_length != sizeof target || (count && !buffers) || count > 4096) return WSAEINVAL;
    memcpy(&target, descriptor, sizeof target);
    const uint32_t needed = opcode == SNIC_WR_RDMA_WRITE ? MEM_WRITE : MEM_READ;
    if (target.magic != descriptor_magic) return WSAEINVAL;
    uint64_t total = 0;
    for (DWORD i = 0; i < count; ++i) total += buffers[i].len;
    // What can be seen from here; the peer's NIC has the last word.
    if (!(target.rights & needed) || offset > target.length || total > target.length - offset) return WSAEINVAL;
    if (total > process->nic.limits().max_message) return WSAEMSGSIZE;

    Guard guard(s.lock);
    int problem = check_connected(s, false);
    if (problem) return problem;
    Queue<Operation> chain;
    problem = build_rdma(s, chain, opcode, buffers, count, target, offset);
    if (problem) {
        free_chain(s, chain);
        return problem;
    }
    begin_overlapped(overlapped);
    while (Operation *op = chain.pop()) {
        if (chain.empty()) { // the last piece stands for all: they complete in order, and an error flushes what follows
            carry(*op, overlapped, flags, total);
        }
        post(s, s.sq, op);
    }
    if (opcode == SNIC_WR_RDMA_READ) s.read_unfenced = true;
    if (s.harvest_depth == 0) arm_if_needed(s);
    return WSA_IO_PENDING;
}

} // namespace

int WSPAPI san_send(SOCKET handle, LPWSABUF buffers, DWORD count, LPDWORD, DWORD flags, LPWSAOVERLAPPED overlapped,
                    LPWSAOVERLAPPED_COMPLETION_ROUTINE, LPWSATHREADID, LPINT error) {
    SocketRef s(handle);
    if (!s) return fail(error, WSAENOTSOCK);
    if (!overlapped || !buffers || count == 0) return fail(error, WSAEINVAL);
    if (flags) return fail(error, WSAEOPNOTSUPP);
    return fail(error, post_message(*s, s->sq, SNIC_WR_SEND, MEM_READ, buffers, count, 0, overlapped));
}

int WSPAPI san_recv(SOCKET handle, LPWSABUF buffers, DWORD count, LPDWORD, LPDWORD flags, LPWSAOVERLAPPED overlapped,
                    LPWSAOVERLAPPED_COMPLETION_ROUTINE, LPWSATHREADID, LPINT error) {
    SocketRef s(handle);
    if (!s) return fail(error, WSAENOTSOCK);
    if (!overlapped || !buffers || count == 0) return fail(error, WSAEINVAL);
    return fail(error, post_message(*s, s->rq, SNIC_WR_RECV, MEM_WRITE, buffers, count, flags ? *flags : 0, overlapped));
}

int WSPAPI san_rdma_write(SOCKET handle, LPWSABUFEX buffers, DWORD count, LPVOID descriptor, DWORD descriptor_length,
                          DWORD offset, LPDWORD, DWORD flags, LPWSAOVERLAPPED overlapped,
                          LPWSAOVERLAPPED_COMPLETION_ROUTINE, LPWSATHREADID, LPINT error) {
    SocketRef s(handle);
    if (!s) return fail(error, WSAENOTSOCK);
    if (!overlapped) return fail(error, WSAEINVAL);
    return fail(error, post_rdma(*s, SNIC_WR_RDMA_WRITE, buffers, count, descriptor, descriptor_length, offset, flags,
                                 overlapped));
}

int WSPAPI san_rdma_read(SOCKET handle, LPWSABUFEX buffers, DWORD count, LPVOID descriptor, DWORD descriptor_length,
                         DWORD offset, LPDWORD, DWORD flags, LPWSAOVERLAPPED overlapped,
                         LPWSAOVERLAPPED_COMPLETION_ROUTINE, LPWSATHREADID, LPINT error) {
    SocketRef s(handle);
    if (!s) return fail(error, WSAENOTSOCK);
    if (!overlapped) return fail(error, WSAEINVAL);
    return fail(error, post_rdma(*s, SNIC_WR_RDMA_READ, buffers, count, descriptor, descriptor_length, offset, flags,
                                 overlapped));
}

} // namespace sanprov
