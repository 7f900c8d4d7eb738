// SPDX-License-Identifier: GPL-2.0-or-later
// hostile_guest.h: two machines, one of whose guests is hostile. After each test the device must be of use as before.
#pragma once

#include <gtest/gtest.h>

#include "sim/guest.h"

namespace sim {

inline constexpr uint64_t kNoRam = 0x7000'0000'0000;

struct Hostile : ::testing::Test {
    World world{1};
    Machine &ma = world.add(), &mb = world.add();
    SimBoard board_a{world, ma}, board_b{world, mb};
    Guest a{board_a}, b{board_b};
    GuestCq acq, bcq;

    void SetUp() override { start(); }
    void TearDown() override {
        ma.on_map = {};
        EXPECT_TRUE(works()) << "the device is of no use after that";
        EXPECT_EQ(ma.violations + mb.violations, 0u);
    }
    void start() {
        a.start();
        b.start();
        acq = a.create_cq();
        bcq = b.create_cq();
    }
    // A fresh connection carries data.
    bool works() {
        if (ma.nic.read_register(SNIC_REG_STATUS, 4) != (SNIC_STATUS_READY | SNIC_STATUS_LINK_UP)) {
            ma.nic.write_register(SNIC_REG_CTRL, SNIC_CTRL_RESET, 4);
            ma.nic.write_register(SNIC_REG_CTRL, 0, 4);
            a.start();
            acq = a.create_cq();
        }
        return carries_data(a, acq, b, bcq);
    }
    template <typename T>
    void refuses(uint8_t opcode, const T &body, snic_status status, size_t field, const char *what) {
        Completion c = a.command(opcode, body);
        EXPECT_EQ(c.status, status) << what;
        EXPECT_EQ(c.detail, field) << what;
        for (uint64_t r : c.result) EXPECT_EQ(r, 0u) << what << ": a refused command returns something";
    }
    uint32_t objects() { return ma.nic.fabric_totals().qps + ma.nic.fabric_totals().mrs; }
    // Offset of a body's member in the command, as completions report it.
    static constexpr size_t in_body(size_t offset) { return offsetof(snic_cmd, body) + offset; }
};

}  // namespace sim

// Where completions say that a command's member was wrong.
#define FIELD(type, member) in_body(offsetof(type, member))
