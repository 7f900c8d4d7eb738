// SPDX-License-Identifier: GPL-2.0-or-later
//
// completion.cc: from the completion queue to the switch. One thread at a time takes completions off a socket's CQ, one by
// one, so that they are signalled in their order; whoever finds another thread at it leaves it to that thread. Before the
// last one out leaves, the CQ is armed again if the switch waits to be told of something.
#include "provider.h"

namespace sanprov {

namespace {

bool cqe_ready(const Socket &s) {
    const snic_cqe &cqe = s.cq_ring[s.cq_ci & (s.cq_entries - 1)];
    return __atomic_load_n(&cqe.phase, __ATOMIC_ACQUIRE) == s.cq_ci / s.cq_entries + 1;
}

// Under s.lock.
int completion_error(Socket &s, const snic_cqe &cqe) {
    switch (cqe.status) {
    case SNIC_WC_SUCCESS: return 0;
    case SNIC_WC_WR_FLUSH_ERR:
        // The connection has ended. How, may still be on its way on the event queue; a failure of ours would have completed
        // before with its own status, so it was the peer.
        connection_lost(s, WSAECONNRESET);
        return cqe.opcode == SNIC_WR_RECV ? s.error : WSA_OPERATION_ABORTED; // receives tell the switch
    default:
        connection_lost(s, WSAECONNABORTED);
        return WSAECONNABORTED;
    }
}

// Under s.lock. Takes one entry off the CQ. False: it was empty. The completion may be one that nobody waits for.
bool take_one(Socket &s, Completion &completion) {
    if (!s.cq_ring || !cqe_ready(s)) return false;
    snic_cqe cqe;
    memcpy(&cqe, &s.cq_ring[s.cq_ci & (s.cq_entries - 1)], sizeof cqe);
    ++s.cq_ci;
    __atomic_store_n(&s.cq_record->ci, s.cq_ci, __ATOMIC_RELEASE);

    const bool receive = cqe.opcode == SNIC_WR_RECV;
    completion.overlapped = nullptr;
    // Closing ends these itself, after it has released their memory.
    if (s.state == State::closed && cqe.status == SNIC_WC_WR_FLUSH_ERR) return true;
    Operation *op = retire(s, receive ? s.rq : s.sq, cqe.wqe_index, cqe.wr_id);
    if (!op) return true;
    const int error = completion_error(s, cqe);
    completion = {op->overlapped, error, error ? 0 : receive ? cqe.byte_len : op->bytes, op->flags, op->notified};
    if (op->notified) --s.notified_pending;
    operation_free(s, op);
    return true;
}

} // namespace

void begin_overlapped(WSAOVERLAPPED *overlapped) {
    // Before the NIC can complete it.
    *const_cast<volatile ULONG_PTR *>(&overlapped->Internal) = WSS_OPERATION_IN_PROGRESS;
}

void signal_completion(Socket &s, const Completion &c) {
    c.overlapped->Offset = c.flags;
    c.overlapped->OffsetHigh = c.error;
    c.overlapped->InternalHigh = c.bytes; // also before a notification: the switch looks at it
    if (c.notified) {
        int ignored;
        process->upcalls.lpWPUCompleteOverlappedRequest(s.switch_handle, c.overlapped, c.error, c.bytes, &ignored);
    } else {
        // The last access: the switch may reuse the structure at once.
        __atomic_store_n(&c.overlapped->Internal, static_cast<ULONG_PTR>(0), __ATOMIC_RELEASE);
    }
}

void signal_all(Socket &s, Queue<Operation> &operations, int error) {
    while (Operation *op = operations.pop()) {
        const Completion completion = {op->overlapped, error, 0, op->flags, op->notified};
        {
            Guard guard(s.lock);
            operation_free(s, op);
        }
        if (completion.overlapped) signal_completion(s, completion);
    }
}

void arm_if_needed(Socket &s) {
    if (s.armed || s.notified_pending == 0 || !s.cq_record || s.state == State::closed) return;
    s.armed = true;
    process->nic.ring(SNIC_DB_CQ_ARM, s.cqn);
}

void harvest(Socket &s) {
    const DWORD me = GetCurrentThreadId();
    s.lock.lock();
    if (s.harvest_depth == 0 || s.harvester == me) {
        s.harvester = me;
        ++s.harvest_depth;
        Completion completion;
        while (take_one(s, completion)) {
            if (!completion.overlapped) continue;
            s.lock.unlock();
            signal_completion(s, completion); // may call back into this socket, on this thread
            s.lock.lock();
        }
        --s.harvest_depth;
        if (s.harvest_depth == 0) arm_if_needed(s);
    }
    s.lock.unlock();
}

void on_cq_event(Socket &s) {
    {
        Guard guard(s.lock);
        s.armed = false;
    }
    harvest(s);
}

BOOL WSPAPI san_get_overlapped_result(SOCKET handle, LPWSAOVERLAPPED overlapped, LPDWORD bytes, BOOL wait, LPDWORD flags,
                                      LPINT error) {
    SocketRef s(handle);
    int problem = s ? 0 : WSAENOTSOCK;
    if (!problem && !overlapped) problem = WSAEINVAL;
    if (problem) {
        fail(error, problem);
        return FALSE;
    }
    auto pending = [overlapped] {
        return __atomic_load_n(&overlapped->Internal, __ATOMIC_ACQUIRE) == WSS_OPERATION_IN_PROGRESS;
    };
    if (pending()) {
        harvest(*s);
        // The switch polls; waiting is for others, and may be leisurely.
        for (unsigned round = 0; wait && pending(); ++round) {
            Sleep(round < 1000 ? 0 : 1);
            harvest(*s);
        }
        if (pending()) {
            fail(error, WSA_IO_INCOMPLETE);
            return FALSE;
        }
    }
    if (bytes) *bytes = static_cast<DWORD>(overlapped->InternalHigh);
    if (flags) *flags = overlapped->Offset;
    if (overlapped->OffsetHigh == 0) return TRUE;
    fail(error, static_cast<int>(overlapped->OffsetHigh));
    return FALSE;
}

} // namespace sanprov
