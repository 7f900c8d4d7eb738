// SPDX-License-Identifier: GPL-2.0-or-later
// host.h: what the NIC model needs from outside. The model has no threads, clocks, sockets or randomness of its own; an owner
// (the engine in emulator/fabric, a simulation, a fuzzer) implements these two interfaces and calls Nic::step().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace snic {

// Names one of the fabric links that the owner has told the model about (Nic::peer_up). Never reused while a QP refers to it.
using PeerId = uint32_t;
inline constexpr PeerId kNoPeer = 0;

// Where a piece of host memory lies in the RAM that this NIC shares with its peers.
struct RamRef {
    bool shared = false;  // false: peers cannot reach it, data must travel as payload
    uint16_t ram = 0;
    uint64_t offset = 0;
};

class Host {
  public:
    virtual ~Host() = default;

    // RAM at bus address `addr`. `len`: in, bytes wanted; out, bytes contiguous from there (1..in). nullptr: not RAM, or not
    // accessible in that direction. Valid until Nic::step (or whichever entry called it) returns.
    virtual std::byte *map(uint64_t addr, size_t &len, bool write) = 0;
    // Place of mapped memory in the shared RAM. `len` bytes from `p`, all inside one piece, or shared = false.
    virtual RamRef ram_ref(const std::byte *p, size_t len) = 0;

    virtual uint64_t now_ns() = 0;
    virtual uint32_t random() = 0;

    virtual void interrupt(unsigned vector) = 0;        // the owner turns it into a message or into the line's level
    virtual void log(int level, const char *text) = 0;  // 0 error, 1 warning, 2 information
};

// The way to the peers. Messages are records of fabric_wire.h; a link keeps their order and may lose some of them.
class Link {
  public:
    virtual ~Link() = default;

    // Memory for a record of `size` bytes (at most FABRIC_MAX_RECORD); empty when the link is full or down. The record is built
    // in place and leaves with commit(); at most one reservation at a time. When a link that was full has room again, the owner
    // calls Nic::step(), which until then may report that there is nothing to do.
    virtual std::span<std::byte> reserve(PeerId peer, size_t size) = 0;
    virtual void commit(PeerId peer) = 0;

    // Must records to that peer carry a CRC (something on the way may damage them)?
    virtual bool checksum(PeerId peer) = 0;
    // Can the peer reach our shared RAM, and we its RAM?
    virtual bool direct(PeerId peer) = 0;
    // The peer's RAM; nullptr unless all `len` bytes lie inside piece `ram`.
    virtual std::byte *peer_ram(PeerId peer, uint16_t ram, uint64_t offset, size_t len) = 0;
    // Which peer has that address? kNoPeer: none (or its link is down).
    virtual PeerId find(uint32_t ip) = 0;
};

}  // namespace snic
