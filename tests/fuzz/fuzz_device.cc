// SPDX-License-Identifier: GPL-2.0-or-later
// A hostile guest: registers, doorbells, admin commands and guest memory in any order. The device must survive, and
// must not touch memory outside the guest's RAM (AddressSanitizer sees that).
#include "input.h"
#include "sim/guest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz::Input in(data, size);
    sim::World world(1);
    snic::Config config;
    config.max_qp = config.max_cq = config.max_mr = config.max_pd = 16;
    config.doorbell_pages = 4;
    sim::Machine &m = world.add(config, 256 << 10);
    world.add(config, 64 << 10);
    uint64_t aq = sim::Machine::kRamBase, acq = aq + 4096;
    uint32_t posted = 0;
    auto enable = [&] {
        m.nic.write_register(SNIC_REG_AQ_SIZE, 16, 4);
        m.nic.write_register(SNIC_REG_AQ_BASE, aq, 8);
        m.nic.write_register(SNIC_REG_ACQ_BASE, acq, 8);
        m.nic.write_register(SNIC_REG_CTRL, SNIC_CTRL_ENABLE, 4);
        posted = 0;
    };
    enable();
    for (int n = 0; n < 200 && !in.empty(); n++) {
        switch (in.take<uint8_t>() % 8) {
            case 0:
                m.nic.write_register(in.take<uint8_t>(), in.take<uint64_t>(), in.take<uint8_t>() & 8 ? 8 : 4);
                break;
            case 1:
                m.nic.doorbell(in.take<uint8_t>() % 5, in.take<uint8_t>() & 1 ? SNIC_DB_SQ : SNIC_DB_CQ_ARM,
                               in.take<uint32_t>());
                break;
            case 2: {  // poke memory
                uint32_t at = in.take<uint16_t>() * 64u % (256 << 10), len = in.take<uint8_t>();
                if (at + len > (256u << 10)) break;
                in.copy(m.ram.data() + at, len);
                break;
            }
            case 3:
            case 4: {  // a well-placed command with any content; small handles and RAM addresses are likely
                snic_cmd cmd = {};
                cmd.opcode = in.take<uint8_t>() % 0x80;
                in.copy(cmd.body, sizeof cmd.body);
                for (size_t i = 0; i + 8 <= sizeof cmd.body; i += 8) {
                    uint64_t word;
                    std::memcpy(&word, cmd.body + i, 8);
                    if ((word & 0xFF) == 0xA5)
                        word = sim::Machine::kRamBase + (word >> 8 & 0x3F) * 4096, std::memcpy(cmd.body + i, &word, 8);
                }
                *m.at<snic_cmd>(aq + posted % 16 * sizeof cmd) = cmd;
                m.nic.write_register(SNIC_REG_AQ_DOORBELL, ++posted, 4);
                m.nic.step(16);
                break;
            }
            case 5: world.turn(); break;
            case 6: world.now += in.take<uint32_t>(); break;
            case 7:
                if (in.take<uint8_t>() & 1) {
                    m.nic.reset();
                    enable();
                } else {
                    m.nic.prepare_sleep();
                }
                break;
        }
    }
    for (int i = 0; i < 50; i++) world.turn();
    m.nic.state_json();
    m.nic.reset();
    return 0;
}
