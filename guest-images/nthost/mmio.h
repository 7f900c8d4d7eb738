// SPDX-License-Identifier: GPL-2.0-or-later
//
// mmio.h: device memory that is not memory: ranges of inaccessible pages whose faults are decoded and forwarded.
//
// On x64 the register macros of driver headers are plain volatile accesses, so the instruction itself has to be carried
// out: emulate_access() does that for the loads, stores and read-modify-writes that compilers emit. An instruction that
// it does not know answers false, and nothing was changed.
#pragma once

#include <cstdint>

#include "nt_types.h"

namespace nth {

struct CpuState {
    uint64_t reg[16];  // nt::Register order
    uint64_t rip;
    uint64_t eflags;
    nt::M128 *xmm;  // 16 registers, may be null in tests without SSE operands
};

struct MmioPort {
    virtual ~MmioPort() = default;
    virtual uint64_t read(uint64_t offset, unsigned size) = 0;
    virtual void write(uint64_t offset, uint64_t value, unsigned size) = 0;
};

// Carries out the instruction at code (readable for up to 15 bytes), whose memory operand starts at `address`, with
// offsets counted from `base`. Advances rip.
bool emulate_access(const uint8_t *code, CpuState &cpu, uint64_t address, uint64_t base, MmioPort &port);

// mov to and from cr8, the inlined KeRaiseIrql and KeGetCurrentIrql. Same contract.
bool emulate_cr8(const uint8_t *code, CpuState &cpu, uint64_t (*read)(), void (*write)(uint64_t));

// Ranges that trap. Lookup is safe in signal handlers; the port must outlive the range. port_offset: offset of the
// range's first byte as the port counts.
void add_mmio_range(uint64_t address, uint64_t size, MmioPort *port, uint64_t port_offset);
void remove_mmio_range(uint64_t address);
struct MmioRange {
    uint64_t address, size;
    MmioPort *port;
    uint64_t port_offset;
};
const MmioRange *find_mmio_range(uint64_t address);

}  // namespace nth
