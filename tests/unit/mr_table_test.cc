// SPDX-License-Identifier: GPL-2.0-or-later
// Keys, and the pages behind regions: sizes, unaligned ends, malformed lists.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <set>

#include "nic/mr_table.h"
#include "nic/page_map.h"

using namespace snic;

namespace {

// RAM of 16 MiB at 0; bus addresses above it exist for nobody.
class Ram : public Host {
  public:
    std::vector<std::byte> bytes = std::vector<std::byte>(16 << 20);
    std::mt19937 rng{5};
    std::byte *map(uint64_t addr, size_t &len, bool) override {
        if (addr >= bytes.size()) return nullptr;
        len = std::min<size_t>(len, bytes.size() - addr);
        return bytes.data() + addr;
    }
    RamRef ram_ref(const std::byte *, size_t) override { return {}; }
    uint64_t now_ns() override { return 0; }
    uint32_t random() override { return rng(); }
    void interrupt(unsigned) override {}
    void log(int, const char *) override {}
    void put(uint64_t at, const std::vector<uint64_t> &entries) {
        std::memcpy(&bytes[at], entries.data(), entries.size() * 8);
    }
};

TEST(Keys, OfOneSlotDoNotComeAgain) {
    Ram ram;
    MrTable table(ram, 10);
    std::set<uint64_t> seen;
    for (int i = 0; i < 200'000; i++) {
        Mr *mr = table.create();
        ASSERT_TRUE(seen.insert(mr->key).second) << "after " << i;
        table.destroy(*mr);
    }
}

TEST(Keys, NextOneDoesNotFollowFromTheLast) {
    // The differences between successive variants take many values: no step to be learnt.
    Ram ram;
    MrTable table(ram, 4);
    Mr *mr = table.create();
    std::map<uint32_t, int> steps;
    uint32_t last = static_cast<uint32_t>(mr->key >> 32);
    for (int i = 0; i < 1000; i++) {
        table.rekey(*mr);
        uint32_t variant = static_cast<uint32_t>(mr->key >> 32);
        steps[variant - last]++;
        last = variant;
    }
    EXPECT_GT(steps.size(), 990u);
}

TEST(Keys, DifferBetweenSeedsAndBetweenSlots) {
    Ram one, two;
    two.rng.seed(6);
    MrTable a(one, 4), b(two, 4);
    Mr *a1 = a.create(), *a2 = a.create(), *b1 = b.create();
    EXPECT_NE(a1->key >> 32, a2->key >> 32);
    EXPECT_NE(a1->key, b1->key);
}

TEST(Keys, OfADestroyedRegionNameNothing) {
    Ram ram;
    MrTable table(ram, 4);
    Mr *mr = table.create();
    uint64_t key = mr->key;
    table.destroy(*mr);
    EXPECT_EQ(table.find(key), nullptr);
    EXPECT_EQ(table.find(0), nullptr);
    EXPECT_EQ(table.find(UINT64_MAX), nullptr);
}

TEST(MrTable, RefusesMoreThanItsLimit) {
    Ram ram;
    MrTable table(ram, 3);
    for (int i = 0; i < 3; i++) EXPECT_NE(table.create(), nullptr);
    EXPECT_EQ(table.create(), nullptr);
}

TEST(PageMap, UnalignedStartAndEndAcrossScatteredPages) {
    Ram ram;
    ram.put(0x1000, {0x9000, 0x5000, 0xC000});
    PageMap map;
    ASSERT_EQ(map.load(ram, {0x1000, 0xF00, 12, 1, 0}, 0x1300), SNIC_OK);
    EXPECT_EQ(map.find(0).addr, 0x9F00u);
    EXPECT_EQ(map.find(0).len, 0x100u);
    EXPECT_EQ(map.find(0x100).addr, 0x5000u);
    EXPECT_EQ(map.find(0x1100).addr, 0xC000u);
    EXPECT_EQ(map.find(0x1100).len, 0x200u) << "ends with the region, not with the page";
}

TEST(PageMap, TwoMebibyteAndOneGibibytePages) {
    Ram ram;
    ram.put(0x1000, {0x4000'0000, 0x1000'0000, 0x2020'0000});
    PageMap map;
    ASSERT_EQ(map.load(ram, {0x1000, 0x12345, 21, 1, 0}, (5u << 20)), SNIC_OK);
    EXPECT_EQ(map.find(0).addr, 0x4001'2345u);
    EXPECT_EQ(map.find((2 << 20) - 0x12345).addr, 0x1000'0000u);
    PageMap big;
    ASSERT_EQ(big.load(ram, {0x4000'0000, 0x100, 30, 0, 0}, 1ull << 32), SNIC_OK);
    EXPECT_EQ(big.find((1ull << 32) - 1).addr, 0x4000'0000u + 0x100 + (1ull << 32) - 1);
    EXPECT_EQ(map.load(ram, {0x1000, 0, 13, 1, 0}, 100), SNIC_ERR_PARAM) << "no such page size";
}

TEST(PageMap, TwoAndThreeLevels) {
    Ram ram;
    std::vector<uint64_t> pages;
    for (uint64_t i = 0; i < 1024; i++) pages.push_back(0x100000 + (1023 - i) * 4096);
    ram.put(0x10000, {pages.begin(), pages.begin() + 512});
    ram.put(0x11000, {pages.begin() + 512, pages.end()});
    ram.put(0x12000, {0x10000, 0x11000});
    ram.put(0x13000, {0x12000});
    for (uint8_t levels : {2, 3}) {
        PageMap map;
        ASSERT_EQ(map.load(ram, {levels == 2 ? 0x12000u : 0x13000u, 0, 12, levels, 0}, 1024 * 4096), SNIC_OK);
        EXPECT_EQ(map.find(0).addr, pages[0]);
        EXPECT_EQ(map.find(700 * 4096 + 5).addr, pages[700] + 5);
    }
}

TEST(PageMap, ContiguousListBecomesOneRun) {
    Ram ram;
    ram.put(0x1000, {0x20000, 0x21000, 0x22000});
    PageMap map;
    ASSERT_EQ(map.load(ram, {0x1000, 0, 12, 1, 0}, 3 * 4096), SNIC_OK);
    EXPECT_EQ(map.find(0).len, 3u * 4096);
    EXPECT_EQ(map.bytes_held(), 0u);
}

TEST(PageMap, RefusesMalformedLists) {
    Ram ram;
    PageMap map;
    EXPECT_EQ(map.load(ram, {0x1000, 0, 12, 4, 0}, 1), SNIC_ERR_PARAM) << "too many levels";
    EXPECT_EQ(map.load(ram, {0x1004, 0, 12, 1, 0}, 1), SNIC_ERR_PARAM) << "unaligned root";
    EXPECT_EQ(map.load(ram, {0x1000, 4096, 12, 1, 0}, 1), SNIC_ERR_PARAM) << "offset beyond the page";
    EXPECT_EQ(map.load(ram, {0x1000, 0, 12, 1, 0}, 0), SNIC_ERR_PARAM) << "no bytes";
    EXPECT_EQ(map.load(ram, {0x1000, 0, 12, 1, 0}, 513 * 4096), SNIC_ERR_PARAM) << "more than one level can name";
    EXPECT_EQ(map.load(ram, {0x1000, 0, 12, 0, 0}, UINT64_MAX), SNIC_ERR_PARAM) << "wraps";
    EXPECT_EQ(map.load(ram, {uint64_t{1} << 40, 0, 12, 1, 0}, 1), SNIC_ERR_DMA) << "list is not RAM";
    ram.put(0x1000, {0x20010});
    EXPECT_EQ(map.load(ram, {0x1000, 0, 12, 1, 0}, 1), SNIC_ERR_DMA) << "entry is no page address";
}

TEST(PageMap, ListThatNamesItselfEnds) {
    Ram ram;
    std::vector<uint64_t> self(512, 0x1000);
    ram.put(0x1000, self);
    PageMap map;
    EXPECT_EQ(map.load(ram, {0x1000, 0, 12, 3, 0}, 100000ull * 4096), SNIC_OK);
    EXPECT_EQ(map.find(99999ull * 4096).addr, 0x1000u);
}

}  // namespace
