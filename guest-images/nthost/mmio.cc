// SPDX-License-Identifier: GPL-2.0-or-later
#include "mmio.h"

#include <atomic>
#include <cstring>

#include "base.h"

namespace nth {

using namespace nt;

namespace {

constexpr uint64_t CF = 1, PF = 4, AF = 16, ZF = 64, SF = 128, DF = 1024, OF = 2048;

uint64_t mask_of(unsigned size) {
    return size == 8 ? ~uint64_t{0} : (uint64_t{1} << (size * 8)) - 1;
}
uint64_t sign_extend(uint64_t v, unsigned size) {
    unsigned shift = 64 - size * 8;
    return static_cast<uint64_t>(static_cast<int64_t>(v << shift) >> shift);
}

struct Decoder {
    const uint8_t *p;
    bool operand16 = false, rep = false, repne = false;
    uint8_t rex = 0;
    unsigned operand_size() const { return (rex & 8) ? 8 : operand16 ? 2 : 4; }
    uint64_t take(unsigned n) {
        uint64_t v = 0;
        memcpy(&v, p, n);
        p += n;
        return v;
    }
    // Skips ModRM with its addressing bytes. false: a register operand.
    bool modrm(unsigned *reg) {
        uint8_t m = *p++;
        unsigned mod = m >> 6, rm = m & 7;
        *reg = (m >> 3 & 7) | ((rex & 4) ? 8 : 0);
        if (mod == 3) return false;
        unsigned disp = mod == 1 ? 1 : mod == 2 ? 4 : 0;
        if (rm == 4) {
            uint8_t sib = *p++;
            if (mod == 0 && (sib & 7) == 5) disp = 4;
        } else if (mod == 0 && rm == 5) {
            disp = 4;
        }
        p += disp;
        return true;
    }
};

uint64_t get_reg(const CpuState &c, unsigned reg, unsigned size, bool rex) {
    if (size == 1 && !rex && reg >= 4 && reg < 8) return c.reg[reg - 4] >> 8 & 0xff;  // ah, ch, dh, bh
    return c.reg[reg] & mask_of(size);
}

void set_reg(CpuState &c, unsigned reg, uint64_t v, unsigned size, bool rex) {
    if (size == 1 && !rex && reg >= 4 && reg < 8)
        c.reg[reg - 4] = (c.reg[reg - 4] & ~uint64_t{0xff00}) | (v & 0xff) << 8;
    else if (size >= 4) c.reg[reg] = v & mask_of(size);  // 32-bit results clear the upper half
    else c.reg[reg] = (c.reg[reg] & ~mask_of(size)) | (v & mask_of(size));
}

// The eight operations of opcodes 00..3f and of group 1.
enum Alu { Add, Or, Adc, Sbb, And, Sub, Xor, Cmp };

uint64_t alu(CpuState &c, unsigned op, uint64_t a, uint64_t b, unsigned size) {
    uint64_t m = mask_of(size), top = uint64_t{1} << (size * 8 - 1), r = 0;
    a &= m;
    b &= m;
    uint64_t carry = c.eflags & CF ? 1 : 0;
    bool cf = false, of = false;
    switch (op) {
        case Add:
        case Adc: {
            uint64_t in = op == Adc ? carry : 0;
            r = (a + b + in) & m;
            cf = r < a || (in != 0 && r == a);
            of = ((a ^ r) & (b ^ r) & top) != 0;
            break;
        }
        case Sub:
        case Sbb:
        case Cmp: {
            uint64_t in = op == Sbb ? carry : 0;
            r = (a - b - in) & m;
            cf = a < b || (in != 0 && a == b);
            of = ((a ^ b) & (a ^ r) & top) != 0;
            break;
        }
        case Or: r = a | b; break;
        case And: r = a & b; break;
        case Xor: r = a ^ b; break;
    }
    c.eflags &= ~(CF | PF | AF | ZF | SF | OF);
    c.eflags |= (cf ? CF : 0) | (of ? OF : 0) | (r == 0 ? ZF : 0) | ((r & top) ? SF : 0) |
                (__builtin_parity(static_cast<unsigned>(r & 0xff)) ? 0 : PF) | ((a ^ b ^ r) & AF);
    return r;
}

// movs and stos, with or without rep.
bool string_op(CpuState &c, Decoder &d, uint8_t op, uint64_t address, uint64_t base, MmioPort &port) {
    unsigned size = (op & 1) ? d.operand_size() : 1;
    bool movs = (op & ~1) == 0xa4;
    int64_t stepv = (c.eflags & DF) ? -int64_t{size} : int64_t{size};
    bool to_device = c.reg[RDI] == address;
    uint64_t count = d.rep ? c.reg[RCX] : 1;
    for (; count != 0; count--) {
        uint64_t v = c.reg[RAX] & mask_of(size);
        if (to_device) {
            if (movs) memcpy(&v, reinterpret_cast<void *>(c.reg[RSI]), size);
            port.write(c.reg[RDI] - base, v & mask_of(size), size);
        } else {
            if (!movs || c.reg[RSI] != address) return false;
            v = port.read(c.reg[RSI] - base, size);
            memcpy(reinterpret_cast<void *>(c.reg[RDI]), &v, size);
        }
        c.reg[RDI] += stepv;
        if (movs) c.reg[RSI] += stepv;
        address += stepv;
        if (d.rep) c.reg[RCX]--;
    }
    return true;
}

bool sse_op(CpuState &c, Decoder &d, uint8_t op, uint64_t offset, MmioPort &port) {
    enum { None, Load16, Store16, Load8, Store8, Load4, Store4 } what = None;
    switch (op) {
        case 0x10:
        case 0x11: {
            bool store = op == 0x11;
            what = d.rep ? (store ? Store4 : Load4) : d.repne ? (store ? Store8 : Load8) : (store ? Store16 : Load16);
            break;
        }
        case 0x28: what = Load16; break;
        case 0x29: what = Store16; break;
        case 0x6f: what = d.operand16 || d.rep ? Load16 : None; break;
        case 0x7f: what = d.operand16 || d.rep ? Store16 : None; break;
        case 0x7e: what = d.rep ? Load8 : d.operand16 ? ((d.rex & 8) ? Store8 : Store4) : None; break;
        case 0xd6: what = d.operand16 ? Store8 : None; break;
        case 0x6e: what = d.operand16 ? ((d.rex & 8) ? Load8 : Load4) : None; break;
        case 0xe7: what = d.operand16 ? Store16 : None; break;
        case 0x2b: what = Store16; break;
        default: break;
    }
    unsigned reg;
    if (what == None || c.xmm == nullptr || !d.modrm(&reg)) return false;
    M128 &x = c.xmm[reg];
    switch (what) {
        case Load16: {
            uint64_t lo = port.read(offset, 8);
            x = {lo, port.read(offset + 8, 8)};
            break;
        }
        case Store16:
            port.write(offset, x.lo, 8);
            port.write(offset + 8, x.hi, 8);
            break;
        case Load8: x = {port.read(offset, 8), 0}; break;
        case Store8: port.write(offset, x.lo, 8); break;
        case Load4: x = {port.read(offset, 4), 0}; break;
        case Store4: port.write(offset, x.lo & 0xffffffff, 4); break;
        default: break;
    }
    return true;
}

bool two_byte_op(CpuState &c, Decoder &d, uint64_t offset, MmioPort &port) {
    uint8_t op = *d.p++;
    bool rex = d.rex != 0;
    unsigned reg;
    switch (op) {
        case 0xb6:
        case 0xb7:
        case 0xbe:
        case 0xbf: {  // movzx, movsx
            if (!d.modrm(&reg)) return false;
            unsigned from = (op & 1) ? 2 : 1;
            uint64_t v = port.read(offset, from) & mask_of(from);
            set_reg(c, reg, op >= 0xbe ? sign_extend(v, from) : v, d.operand_size(), true);
            return true;
        }
        case 0xb0:
        case 0xb1: {  // cmpxchg
            unsigned size = (op & 1) ? d.operand_size() : 1;
            if (!d.modrm(&reg)) return false;
            uint64_t v = port.read(offset, size) & mask_of(size);
            alu(c, Cmp, c.reg[RAX], v, size);
            if (c.eflags & ZF) port.write(offset, get_reg(c, reg, size, rex), size);
            else set_reg(c, RAX, v, size, true);
            return true;
        }
        case 0xc0:
        case 0xc1: {  // xadd
            unsigned size = (op & 1) ? d.operand_size() : 1;
            if (!d.modrm(&reg)) return false;
            uint64_t v = port.read(offset, size) & mask_of(size);
            uint64_t sum = alu(c, Add, v, get_reg(c, reg, size, rex), size);
            set_reg(c, reg, v, size, rex);
            port.write(offset, sum, size);
            return true;
        }
        case 0xc3:  // movnti
            if (!d.modrm(&reg)) return false;
            port.write(offset, get_reg(c, reg, d.operand_size(), true), d.operand_size());
            return true;
        default: return sse_op(c, d, op, offset, port);
    }
}

bool one_byte_op(CpuState &c, Decoder &d, uint8_t op, uint64_t offset, MmioPort &port) {
    unsigned size = (op & 1) ? d.operand_size() : 1;
    bool rex = d.rex != 0;
    unsigned reg;
    if (op < 0x40 && (op & 7) < 4) {  // alu r/m,r and r,r/m
        unsigned kind = op >> 3;
        if (!d.modrm(&reg)) return false;
        uint64_t mem = port.read(offset, size);
        uint64_t r = get_reg(c, reg, size, rex);
        if (op & 2) {
            uint64_t out = alu(c, kind, r, mem, size);
            if (kind != Cmp) set_reg(c, reg, out, size, rex);
        } else {
            uint64_t out = alu(c, kind, mem, r, size);
            if (kind != Cmp) port.write(offset, out, size);
        }
        return true;
    }
    switch (op) {
        case 0x63:  // movsxd
            if (!d.modrm(&reg)) return false;
            set_reg(c, reg, sign_extend(port.read(offset, 4), 4), d.operand_size(), true);
            return true;
        case 0x80:
        case 0x81:
        case 0x83: {  // alu r/m,imm
            if (!d.modrm(&reg)) return false;
            unsigned kind = reg & 7;
            uint64_t imm =
                op == 0x81 ? sign_extend(d.take(size == 2 ? 2 : 4), size == 2 ? 2 : 4) : sign_extend(d.take(1), 1);
            uint64_t out = alu(c, kind, port.read(offset, size), imm, size);
            if (kind != Cmp) port.write(offset, out, size);
            return true;
        }
        case 0x84:
        case 0x85:  // test
            if (!d.modrm(&reg)) return false;
            alu(c, And, port.read(offset, size), get_reg(c, reg, size, rex), size);
            return true;
        case 0x86:
        case 0x87: {  // xchg
            if (!d.modrm(&reg)) return false;
            uint64_t v = port.read(offset, size);
            port.write(offset, get_reg(c, reg, size, rex), size);
            set_reg(c, reg, v, size, rex);
            return true;
        }
        case 0x88:
        case 0x89:
            if (!d.modrm(&reg)) return false;
            port.write(offset, get_reg(c, reg, size, rex), size);
            return true;
        case 0x8a:
        case 0x8b:
            if (!d.modrm(&reg)) return false;
            set_reg(c, reg, port.read(offset, size), size, rex);
            return true;
        case 0xc6:
        case 0xc7: {
            if (!d.modrm(&reg) || (reg & 7) != 0) return false;
            uint64_t imm = size == 1 ? d.take(1) : size == 2 ? d.take(2) : sign_extend(d.take(4), 4);
            port.write(offset, imm & mask_of(size), size);
            return true;
        }
        case 0xf6:
        case 0xf7: {  // test r/m,imm; not
            if (!d.modrm(&reg)) return false;
            if ((reg & 7) <= 1) {
                uint64_t imm = size == 1 ? d.take(1) : size == 2 ? d.take(2) : sign_extend(d.take(4), 4);
                alu(c, And, port.read(offset, size), imm, size);
                return true;
            }
            if ((reg & 7) != 2) return false;
            port.write(offset, ~port.read(offset, size) & mask_of(size), size);
            return true;
        }
        case 0xfe:
        case 0xff: {  // inc, dec keep the carry
            if (!d.modrm(&reg) || (reg & 7) > 1) return false;
            uint64_t carry = c.eflags & CF;
            uint64_t out = alu(c, (reg & 7) == 0 ? Add : Sub, port.read(offset, size), 1, size);
            c.eflags = (c.eflags & ~CF) | carry;
            port.write(offset, out, size);
            return true;
        }
        default: return false;
    }
}

}  // namespace

bool emulate_access(const uint8_t *code, CpuState &cpu, uint64_t address, uint64_t base, MmioPort &port) {
    Decoder d{code};
    for (;; d.p++) {
        uint8_t b = *d.p;
        if (b == 0x66) d.operand16 = true;
        else if (b == 0xf3) d.rep = true;
        else if (b == 0xf2) d.repne = true;
        else if (b != 0xf0 && b != 0x2e && b != 0x3e && b != 0x26 && b != 0x36 && b != 0x64 && b != 0x65) break;
        if (d.p - code > 4) return false;
    }
    if ((*d.p & 0xf0) == 0x40) d.rex = *d.p++;
    uint8_t op = *d.p++;
    bool ok;
    if (op == 0x0f) ok = two_byte_op(cpu, d, address - base, port);
    else if ((op & ~1) == 0xa4 || (op & ~1) == 0xaa) ok = string_op(cpu, d, op, address, base, port);
    else ok = one_byte_op(cpu, d, op, address - base, port);
    if (ok) cpu.rip += d.p - code;
    return ok;
}

bool emulate_cr8(const uint8_t *code, CpuState &cpu, uint64_t (*read)(), void (*write)(uint64_t)) {
    // 44 0f 20 /r: mov r, cr8; 44 0f 22 /r: mov cr8, r; with REX.B for r8..r15. REX.W changes nothing.
    if ((code[0] & 0xf4) != 0x44 || code[1] != 0x0f || (code[2] != 0x20 && code[2] != 0x22)) return false;
    uint8_t m = code[3];
    if ((m >> 3 & 7) != 0 || (m >> 6) != 3) return false;
    unsigned reg = (m & 7) | ((code[0] & 1) ? 8 : 0);
    if (code[2] == 0x20) cpu.reg[reg] = read();
    else write(cpu.reg[reg]);
    cpu.rip += 4;
    return true;
}

// ---- ranges

namespace {
constexpr unsigned MAX_RANGES = 256;
struct Slot {
    std::atomic<uint64_t> address{0};  // 0: free; set last
    MmioRange range;
};
Slot g_ranges[MAX_RANGES];
FutexLock g_range_lock;
}  // namespace

void add_mmio_range(uint64_t address, uint64_t size, MmioPort *port, uint64_t port_offset) {
    Locked l(g_range_lock);
    for (Slot &s : g_ranges) {
        if (s.address.load() != 0) continue;
        s.range = {address, size, port, port_offset};
        s.address.store(address, std::memory_order_release);
        return;
    }
    host_bug("more than %u device mappings", MAX_RANGES);
}

void remove_mmio_range(uint64_t address) {
    Locked l(g_range_lock);
    for (Slot &s : g_ranges)
        if (s.address.load() == address) s.address.store(0);
}

const MmioRange *find_mmio_range(uint64_t address) {
    for (Slot &s : g_ranges) {
        uint64_t a = s.address.load(std::memory_order_acquire);
        if (a != 0 && address - a < s.range.size) return &s.range;
    }
    return nullptr;
}

}  // namespace nth
