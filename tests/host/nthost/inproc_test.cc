// SPDX-License-Identifier: GPL-2.0-or-later
// The NIC in this process, programmed by hand through trapping BARs.
#include <gtest/gtest.h>

#include "address_space.h"
#include "device.h"
#include "fault.h"
#include "process.h"
#include "sanlab/snic_hw.h"

using namespace nth;
using namespace nt;

namespace {

// A machine with a NIC whose admin rings are in `memory`. Runs in the child of a death test, or alone.
struct Bench {
    std::unique_ptr<Device> device;
    uint64_t bar = 0;
    Bench() {
        start_machine(32 << 20);
        install_fault_handlers();
        adopt_system_thread("test");
        std::string error;
        device = make_inproc_device("ip=10.0.0.1", &error);
        if (!device) ADD_FAILURE() << error;
        bar = *memory().reserve_device_view(nullptr, device->bars()[0].bus >> 12, 1);
        device->fill_mapping(bar, device->bars()[0].bus, 4096);
    }
    template <class T>
    volatile T &reg(unsigned offset) {
        return *reinterpret_cast<volatile T *>(bar + offset);
    }
    // Starts the NIC with rings at that bus address and posts one command.
    void enable(uint64_t bus) {
        reg<uint32_t>(SNIC_REG_AQ_SIZE) = 16;
        reg<uint64_t>(SNIC_REG_AQ_BASE) = bus;
        reg<uint64_t>(SNIC_REG_ACQ_BASE) = bus + 4096;
        reg<uint32_t>(SNIC_REG_CTRL) = SNIC_CTRL_ENABLE;
        usleep_host(20000);
        reg<uint32_t>(SNIC_REG_AQ_DOORBELL) = 1;
        usleep_host(200000);
    }
};

int answer_from_kernel_memory() {
    Bench b;
    auto pages = page_pool().allocate(2);
    b.enable(page_pool().bus(*pages));
    // A command of zeroes is no command, but it is answered.
    return *reinterpret_cast<uint32_t *>(page_pool().address(*pages + 1)) == 0 ? 1 : 0;
}

void rings_in_unlocked_user_memory() {
    Bench b;
    Process *nobody = reinterpret_cast<Process *>(0x1000);
    uint64_t at = 0, size = 8192;
    memory().allocate(nobody, &at, &size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
    b.enable(*memory().pfn_of(at) << 12);
    exit(0);
}

TEST(InprocDevice, AnswersThroughTrappingRegistersAndKernelMemory) {
    EXPECT_EXIT(exit(answer_from_kernel_memory()), testing::ExitedWithCode(0), "");
}

TEST(InprocDevice, DmaToUserMemoryThatIsNotLockedIsABugcheck) {
    EXPECT_EXIT(rings_in_unlocked_user_memory(), testing::ExitedWithCode(99), "DRIVER_VERIFIER_DMA_VIOLATION");
}

}  // namespace
