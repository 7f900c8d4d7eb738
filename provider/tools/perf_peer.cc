// SPDX-License-Identifier: GPL-2.0-or-later
//
// perf_peer.cc: the two connections between client and server: control messages on the first, the measured traffic on the
// second.
#include "perf.h"

namespace sanperf {

namespace {
constexpr uint32_t message_magic = 0x46524550; // "PERF"
static_assert(sizeof(Message) <= santools::Channel::max_message);
} // namespace

int Peer::listen_and_accept(const Options &options, const char **what) {
    *what = "socket";
    int error = listener_.open();
    if (!error) *what = "bind", error = listener_.bind(options.bind_ip, options.port);
    if (!error) *what = "listen", error = listener_.listen(8);
    if (!error) *what = "accept", error = listener_.accept(control_.socket, options.timeout_ms);
    if (!error) *what = "preparing for control messages", error = control_.start(options.timeout_ms);
    if (!error) *what = "accept", error = listener_.accept(data, options.timeout_ms);
    return error;
}

int Peer::connect(const Options &options, const char **what) {
    uint32_t local = options.bind_ip;
    *what = "finding a local address";
    if (!local && sanswitch::addresses(&local, 1) == 0) return WSAEADDRNOTAVAIL;
    *what = "connect";
    int error =
        santools::connect_patiently(control_.socket, local, options.server_ip, options.port, options.timeout_ms);
    if (!error) *what = "preparing for control messages", error = control_.start(options.timeout_ms);
    if (!error)
        *what = "connect",
        error = santools::connect_patiently(data, local, options.server_ip, options.port, options.timeout_ms);
    return error;
}

int Peer::tell(const Message &message) {
    Message copy = message;
    copy.magic = message_magic;
    return control_.tell(&copy, sizeof copy);
}

int Peer::hear(Message &message, Say expected) {
    const int error = control_.hear(&message, sizeof message);
    if (error) return error;
    return message.magic == message_magic && message.say == expected ? 0 : WSAEPROTOTYPE;
}

} // namespace sanperf
