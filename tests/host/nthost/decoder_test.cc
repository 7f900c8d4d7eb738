// SPDX-License-Identifier: GPL-2.0-or-later
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "mmio.h"

using namespace nth;
using namespace nt;

namespace {

struct Access {
    bool write;
    uint64_t offset, value;
    unsigned size;
    bool operator==(const Access &) const = default;
};

struct RecordingPort : MmioPort {
    std::vector<Access> log;
    uint64_t next = 0;
    uint64_t read(uint64_t offset, unsigned size) override {
        log.push_back({false, offset, 0, size});
        return size == 8 ? next : next & ((uint64_t{1} << size * 8) - 1);
    }
    void write(uint64_t offset, uint64_t value, unsigned size) override { log.push_back({true, offset, value, size}); }
};

class Decoder : public testing::Test {
  protected:
    CpuState cpu{};
    M128 xmm[16] = {};
    RecordingPort port;
    bool run(std::vector<uint8_t> code, uint64_t address = 0x1010) {
        length = code.size();
        code.resize(32, 0xcc);
        cpu.rip = 0x400000;
        cpu.xmm = xmm;
        return emulate_access(code.data(), cpu, address, 0x1000, port);
    }
    size_t length = 0;
    void expect_advanced() { EXPECT_EQ(cpu.rip, 0x400000 + length); }
};

TEST_F(Decoder, StoresARegister) {
    cpu.reg[RCX] = 0x1122334455667788;
    ASSERT_TRUE(run({0x89, 0x08}));  // mov [rax], ecx
    EXPECT_EQ(port.log, (std::vector<Access>{{true, 0x10, 0x55667788, 4}}));
    expect_advanced();
}

TEST_F(Decoder, StoresEightBytesWithRexAndDisplacement) {
    cpu.reg[R9] = 0x1122334455667788;
    ASSERT_TRUE(run({0x4c, 0x89, 0x8c, 0x24, 0x00, 0x01, 0x00, 0x00}));  // mov [rsp+0x100], r9
    EXPECT_EQ(port.log, (std::vector<Access>{{true, 0x10, 0x1122334455667788, 8}}));
    expect_advanced();
}

TEST_F(Decoder, StoresImmediatesOfEverySize) {
    ASSERT_TRUE(run({0xc6, 0x00, 0x7f}));  // mov byte [rax], 0x7f
    expect_advanced();
    ASSERT_TRUE(run({0x66, 0xc7, 0x40, 0x08, 0x34, 0x12}));  // mov word [rax+8], 0x1234
    expect_advanced();
    ASSERT_TRUE(run({0xc7, 0x05, 1, 2, 3, 4, 0x78, 0x56, 0x34, 0x12}));  // mov dword [rip+x], 0x12345678
    expect_advanced();
    ASSERT_TRUE(run({0x48, 0xc7, 0x00, 0xff, 0xff, 0xff, 0xff}));  // mov qword [rax], -1
    expect_advanced();
    EXPECT_EQ(port.log, (std::vector<Access>{{true, 0x10, 0x7f, 1},
                                             {true, 0x10, 0x1234, 2},
                                             {true, 0x10, 0x12345678, 4},
                                             {true, 0x10, ~uint64_t{0}, 8}}));
}

TEST_F(Decoder, LoadOfFourBytesClearsTheUpperHalf) {
    cpu.reg[RDX] = ~uint64_t{0};
    port.next = 0x80000001;
    ASSERT_TRUE(run({0x8b, 0x10}));  // mov edx, [rax]
    EXPECT_EQ(cpu.reg[RDX], 0x80000001u);
}

TEST_F(Decoder, LoadOfOneAndTwoBytesKeepsTheRest) {
    cpu.reg[RBX] = 0xaaaaaaaaaaaaaaaa;
    port.next = 0x1234;
    ASSERT_TRUE(run({0x66, 0x8b, 0x18}));  // mov bx, [rax]
    EXPECT_EQ(cpu.reg[RBX], 0xaaaaaaaaaaaa1234);
    ASSERT_TRUE(run({0x8a, 0x38}));  // mov bh, [rax]
    EXPECT_EQ(cpu.reg[RBX], 0xaaaaaaaaaaaa3434);
    ASSERT_TRUE(run({0x40, 0x8a, 0x38}));  // mov dil, [rax]: with REX there is no bh
    EXPECT_EQ(cpu.reg[RDI] & 0xff, 0x34u);
}

TEST_F(Decoder, ExtendsWithZeroAndSign) {
    port.next = 0x80;
    ASSERT_TRUE(run({0x0f, 0xb6, 0x08}));  // movzx ecx, byte [rax]
    EXPECT_EQ(cpu.reg[RCX], 0x80u);
    ASSERT_TRUE(run({0x0f, 0xbe, 0x08}));  // movsx ecx, byte [rax]
    EXPECT_EQ(cpu.reg[RCX], 0xffffff80u);
    port.next = 0x80000000;
    ASSERT_TRUE(run({0x48, 0x63, 0x08}));  // movsxd rcx, dword [rax]
    EXPECT_EQ(cpu.reg[RCX], 0xffffffff80000000);
}

TEST_F(Decoder, ReadModifyWriteSetsFlags) {
    port.next = 0x0f;
    ASSERT_TRUE(run({0x81, 0x08, 0xf0, 0x00, 0x00, 0x00}));  // or dword [rax], 0xf0
    EXPECT_EQ(port.log, (std::vector<Access>{{false, 0x10, 0, 4}, {true, 0x10, 0xff, 4}}));
    port.log.clear();
    port.next = 1;
    ASSERT_TRUE(run({0x83, 0x28, 0x01}));  // sub dword [rax], 1
    EXPECT_TRUE(cpu.eflags & 64);
    EXPECT_EQ(port.log.back(), (Access{true, 0x10, 0, 4}));
}

TEST_F(Decoder, ComparesWithoutWriting) {
    port.next = 5;
    ASSERT_TRUE(run({0x83, 0x38, 0x06}));  // cmp dword [rax], 6
    EXPECT_TRUE(cpu.eflags & 1);
    EXPECT_FALSE(cpu.eflags & 64);
    ASSERT_TRUE(run({0xf6, 0x00, 0x04}));  // test byte [rax], 4
    EXPECT_FALSE(cpu.eflags & 64);
    for (auto &a : port.log) EXPECT_FALSE(a.write);
}

TEST_F(Decoder, ExchangesAndAddsAtomically) {
    cpu.reg[RCX] = 7;
    port.next = 3;
    ASSERT_TRUE(run({0x87, 0x08}));  // xchg [rax], ecx
    EXPECT_EQ(cpu.reg[RCX], 3u);
    EXPECT_EQ(port.log.back(), (Access{true, 0x10, 7, 4}));
    cpu.reg[RCX] = 7;
    ASSERT_TRUE(run({0xf0, 0x0f, 0xc1, 0x08}));  // lock xadd [rax], ecx
    EXPECT_EQ(cpu.reg[RCX], 3u);
    EXPECT_EQ(port.log.back(), (Access{true, 0x10, 10, 4}));
}

TEST_F(Decoder, CompareExchangeWritesOnlyOnEquality) {
    cpu.reg[RAX] = 4;
    cpu.reg[RDX] = 9;
    port.next = 3;
    ASSERT_TRUE(run({0xf0, 0x0f, 0xb1, 0x11}));  // lock cmpxchg [rcx], edx
    EXPECT_EQ(cpu.reg[RAX], 3u);
    EXPECT_FALSE(port.log.back().write);
    ASSERT_TRUE(run({0xf0, 0x0f, 0xb1, 0x11}));
    EXPECT_EQ(port.log.back(), (Access{true, 0x10, 9, 4}));
}

TEST_F(Decoder, SplitsSixteenBytesInTwo) {
    xmm[3] = {0x1111, 0x2222};
    ASSERT_TRUE(run({0x0f, 0x11, 0x18}));  // movups [rax], xmm3
    EXPECT_EQ(port.log, (std::vector<Access>{{true, 0x10, 0x1111, 8}, {true, 0x18, 0x2222, 8}}));
    port.next = 0x77;
    ASSERT_TRUE(run({0xf3, 0x44, 0x0f, 0x6f, 0x08}));  // movdqu xmm9, [rax]
    EXPECT_EQ(xmm[9].lo, 0x77u);
    EXPECT_EQ(xmm[9].hi, 0x77u);
}

TEST_F(Decoder, RepeatsStringStores) {
    uint32_t source[3] = {1, 2, 3};
    cpu.reg[RSI] = reinterpret_cast<uint64_t>(source);
    cpu.reg[RDI] = 0x1010;
    cpu.reg[RCX] = 3;
    ASSERT_TRUE(run({0xf3, 0xa5}));  // rep movsd
    EXPECT_EQ(port.log, (std::vector<Access>{{true, 0x10, 1, 4}, {true, 0x14, 2, 4}, {true, 0x18, 3, 4}}));
    EXPECT_EQ(cpu.reg[RCX], 0u);
    EXPECT_EQ(cpu.reg[RDI], 0x101cu);
}

TEST_F(Decoder, RefusesWhatItDoesNotKnowAndChangesNothing) {
    CpuState before = cpu;
    EXPECT_FALSE(run({0xff, 0x20}));  // jmp [rax]
    EXPECT_EQ(cpu.rip, 0x400000u);
    EXPECT_EQ(memcmp(before.reg, cpu.reg, sizeof cpu.reg), 0);
    EXPECT_TRUE(port.log.empty());
}

uint64_t g_irql;
TEST_F(Decoder, CarriesOutMovesOfCr8) {
    auto read = []() -> uint64_t { return g_irql; };
    auto write = [](uint64_t v) { g_irql = v; };
    uint8_t get[] = {0x44, 0x0f, 0x20, 0xc1}, set[] = {0x45, 0x0f, 0x22, 0xc2};  // mov rcx, cr8; mov cr8, r10
    cpu.reg[R10] = 2;
    ASSERT_TRUE(emulate_cr8(set, cpu, read, write));
    EXPECT_EQ(g_irql, 2u);
    ASSERT_TRUE(emulate_cr8(get, cpu, read, write));
    EXPECT_EQ(cpu.reg[RCX], 2u);
    uint8_t cr3[] = {0x0f, 0x20, 0xd8, 0x90};  // mov rax, cr3
    EXPECT_FALSE(emulate_cr8(cr3, cpu, read, write));
}

TEST(MmioRanges, AreFoundByAnyAddressInsideAndGoneAfterRemoval) {
    RecordingPort port;
    add_mmio_range(0x700000, 0x2000, &port, 0x100);
    ASSERT_NE(find_mmio_range(0x701fff), nullptr);
    EXPECT_EQ(find_mmio_range(0x702000), nullptr);
    remove_mmio_range(0x700000);
    EXPECT_EQ(find_mmio_range(0x700000), nullptr);
}

}  // namespace
