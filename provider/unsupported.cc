// SPDX-License-Identifier: GPL-2.0-or-later
//
// unsupported.cc: the thirteen service provider functions that the switch never calls: each fails with WSAEOPNOTSUPP, which is
// kinder to other callers than an empty slot.
#include "provider.h"

namespace sanprov {

namespace {

// All thirteen end with the pointer to the error.
LPINT last(LPINT error) { return error; }
template <typename First, typename... Rest> LPINT last(First, Rest... rest) { return last(rest...); }

template <typename Function> struct Unsupported;
template <typename Result, typename... Parameters> struct Unsupported<Result(WSPAPI *)(Parameters...)> {
    static Result WSPAPI call(Parameters... parameters) {
        fail(last(parameters...), WSAEOPNOTSUPP);
        return static_cast<Result>(SOCKET_ERROR); // INVALID_SOCKET where that is meant
    }
};

template <typename Function> void fill(Function &slot) { slot = Unsupported<Function>::call; }

} // namespace

void fill_unsupported(WSPPROC_TABLE &table) {
    fill(table.lpWSPAddressToString);
    fill(table.lpWSPAsyncSelect);
    fill(table.lpWSPCancelBlockingCall);
    fill(table.lpWSPGetPeerName);
    fill(table.lpWSPGetSockName);
    fill(table.lpWSPJoinLeaf);
    fill(table.lpWSPRecvDisconnect);
    fill(table.lpWSPRecvFrom);
    fill(table.lpWSPSelect);
    fill(table.lpWSPSendDisconnect);
    fill(table.lpWSPSendTo);
    fill(table.lpWSPShutdown);
    fill(table.lpWSPStringToAddress);
}

} // namespace sanprov
