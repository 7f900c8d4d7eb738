// SPDX-License-Identifier: GPL-2.0-or-later
#include <gtest/gtest.h>

#include <cstring>

#include "address_space.h"
#include "page_pool.h"

using namespace nth;
using namespace nt;

namespace {

TEST(PagePool, HandsOutZeroedPagesAgain) {
    PagePool pool(1 << 20, 0);
    auto p = pool.allocate(1);
    ASSERT_TRUE(p);
    memset(pool.address(*p), 0xaa, 4096);
    pool.release(*p);
    for (int i = 0; i < 300; i++) {  // every page of the pool comes round
        auto q = pool.allocate(1);
        ASSERT_TRUE(q);
        for (int k = 0; k < 4096; k += 64) ASSERT_EQ(pool.address(*q)[k], 0);
        pool.release(*q);
    }
}

TEST(PagePool, NeverHandsOutBusAddressZeroNorThePoolsFirstPage) {
    PagePool pool(64 << 12, 0);
    for (int i = 0; i < 63; i++) {
        auto p = pool.allocate(1);
        ASSERT_TRUE(p);
        EXPECT_GT(pool.bus(*p), PagePool::bus_base);
    }
    EXPECT_FALSE(pool.allocate(1));
    EXPECT_EQ(pool.free_pages(), 0u);
}

TEST(PagePool, KeepsALockedPageWhenItsViewGoes) {
    PagePool pool(1 << 20, 0);
    auto p = pool.allocate(1);
    pool.lock(*p);
    pool.release(*p);
    EXPECT_EQ(pool.references(*p), 1u);
    EXPECT_TRUE(pool.unlock(*p));
    EXPECT_EQ(pool.references(*p), 0u);
    EXPECT_FALSE(pool.unlock(*p));
}

TEST(PagePool, LetsADeviceTouchKernelAndLockedPagesOnly) {
    PagePool pool(1 << 20, 0);
    uint32_t got = 0;
    PageIndex kernel = *pool.allocate(1), user = *pool.allocate_run(1, &got);
    EXPECT_TRUE(pool.device_may_touch(kernel));
    EXPECT_FALSE(pool.device_may_touch(user));
    pool.lock(user);
    EXPECT_TRUE(pool.device_may_touch(user));
    pool.unlock(user);
    EXPECT_FALSE(pool.device_may_touch(user));
    pool.release(kernel);
    EXPECT_FALSE(pool.device_may_touch(kernel));
}

TEST(PagePool, AlignsAndBoundsContiguousMemory) {
    PagePool pool(1 << 20, 0);
    auto p = pool.allocate(8, 16, PagePool::bus_base + (512 << 10) - 1);
    ASSERT_TRUE(p);
    EXPECT_EQ(pool.pfn(*p) % 16, 0u);
    EXPECT_LE(pool.bus(*p) + 8 * 4096, PagePool::bus_base + (512 << 10));
    EXPECT_FALSE(pool.allocate(200, 1, PagePool::bus_base + (512 << 10) - 1));
}

TEST(PagePool, GivesPiecesWhenNoLongRunIsLeft) {
    PagePool pool(64 << 12, 0);
    std::vector<PageIndex> all;
    while (auto p = pool.allocate(1)) all.push_back(*p);
    for (size_t i = 0; i < all.size(); i += 2) pool.release(all[i]);  // every other page
    uint32_t got = 0;
    auto p = pool.allocate_run(8, &got);
    ASSERT_TRUE(p);
    EXPECT_EQ(got, 1u);
}

class Space : public testing::Test {
  protected:
    PagePool pool{16 << 20, 0};
    AddressSpace space{pool};
    Process *me = reinterpret_cast<Process *>(0x1000), *other = reinterpret_cast<Process *>(0x2000);

    uint64_t commit(uint64_t bytes, Process *owner, uint32_t protection = PAGE_READWRITE) {
        uint64_t at = 0, size = bytes;
        EXPECT_EQ(space.allocate(owner, &at, &size, MEM_RESERVE | MEM_COMMIT, protection), STATUS_SUCCESS);
        return at;
    }
    NTSTATUS release(uint64_t at, Process *owner) {
        uint64_t size = 0;
        return space.free(owner, &at, &size, MEM_RELEASE);
    }
    void TearDown() override {
        space.release_all(me);
        space.release_all(other);
        EXPECT_EQ(pool.free_pages(), pool.total_pages() - 1);
    }
};

TEST_F(Space, CommittedMemoryIsWritableAndCountedInThePool) {
    uint32_t before = pool.free_pages();
    uint64_t at = commit(3 * 4096, me);
    memset(reinterpret_cast<void *>(at), 1, 3 * 4096);
    EXPECT_EQ(pool.free_pages(), before - 3);
    EXPECT_EQ(release(at, me), STATUS_SUCCESS);
    EXPECT_EQ(pool.free_pages(), before);
}

TEST_F(Space, AnotherProcessCanNeitherFreeNorLock) {
    uint64_t at = commit(4096, me);
    EXPECT_EQ(release(at, other), STATUS_MEMORY_NOT_ALLOCATED);
    uint64_t pfn;
    EXPECT_EQ(space.lock_range(other, at, 4096, false, &pfn), STATUS_ACCESS_VIOLATION);
}

TEST_F(Space, LockedPagesOutliveVirtualFree) {
    uint64_t at = commit(2 * 4096, me);
    memcpy(reinterpret_cast<void *>(at + 4096), "kept", 5);
    uint64_t pfns[2];
    ASSERT_EQ(space.lock_range(me, at, 2 * 4096, true, pfns), STATUS_SUCCESS);
    ASSERT_EQ(release(at, me), STATUS_SUCCESS);
    PageIndex p = *pool.from_pfn(pfns[1]);
    EXPECT_STREQ(reinterpret_cast<char *>(pool.address(p)), "kept");
    for (uint64_t f : pfns) EXPECT_TRUE(pool.unlock(*pool.from_pfn(f)));
    EXPECT_EQ(pool.references(p), 0u);
}

TEST_F(Space, LockingIsAllOrNothing) {
    uint64_t at = 0, size = 4 * 4096;
    ASSERT_EQ(space.allocate(me, &at, &size, MEM_RESERVE, PAGE_READWRITE), STATUS_SUCCESS);
    uint64_t first = at, n = 2 * 4096;
    ASSERT_EQ(space.allocate(me, &first, &n, MEM_COMMIT, PAGE_READWRITE), STATUS_SUCCESS);
    uint64_t pfns[4];
    EXPECT_EQ(space.lock_range(me, at, 3 * 4096, false, pfns), STATUS_ACCESS_VIOLATION);
    EXPECT_EQ(pool.locks(*pool.from_pfn(*space.pfn_of(at))), 0u);
    EXPECT_EQ(space.lock_range(me, at + 100, 4096, false, pfns), STATUS_SUCCESS);  // crosses into the second page
    pool.unlock(*pool.from_pfn(pfns[0]));
    pool.unlock(*pool.from_pfn(pfns[1]));
}

TEST_F(Space, LockingForWriteNeedsWriteAccess) {
    uint64_t at = commit(4096, me, PAGE_READONLY);
    uint64_t pfn;
    EXPECT_EQ(space.lock_range(me, at, 4096, true, &pfn), STATUS_ACCESS_VIOLATION);
    ASSERT_EQ(space.lock_range(me, at, 4096, false, &pfn), STATUS_SUCCESS);
    pool.unlock(*pool.from_pfn(pfn));
}

TEST_F(Space, SecuredMemoryIsNeitherFreedNorDecommittedNorClosed) {
    uint64_t at = commit(4 * 4096, me), size = 4096, page = at + 4096;
    uint64_t h = space.secure(me, page + 10, 100, PAGE_READWRITE);
    ASSERT_NE(h, 0u);
    EXPECT_EQ(release(at, me), STATUS_INVALID_PAGE_PROTECTION);
    EXPECT_EQ(space.free(me, &page, &size, MEM_DECOMMIT), STATUS_INVALID_PAGE_PROTECTION);
    uint32_t old;
    EXPECT_EQ(space.protect(me, &page, &size, PAGE_READONLY, &old), STATUS_INVALID_PAGE_PROTECTION);
    EXPECT_EQ(space.protect(me, &page, &size, PAGE_EXECUTE_READWRITE, &old), STATUS_SUCCESS);
    uint64_t neighbour = at + 2 * 4096;
    EXPECT_EQ(space.free(me, &neighbour, &size, MEM_DECOMMIT), STATUS_SUCCESS);
    EXPECT_FALSE(space.unsecure(other, h));
    EXPECT_TRUE(space.unsecure(me, h));
    EXPECT_FALSE(space.unsecure(me, h));
    EXPECT_EQ(release(at, me), STATUS_SUCCESS);
}

TEST_F(Space, ReadSecureAllowsMoreAccessButNotNone) {
    uint64_t at = commit(4096, me, PAGE_READONLY), size = 4096;
    uint32_t old;
    EXPECT_EQ(space.secure(me, at, 4096, PAGE_READWRITE), 0u);
    uint64_t h = space.secure(me, at, 4096, PAGE_READONLY);
    ASSERT_NE(h, 0u);
    EXPECT_EQ(space.protect(me, &at, &size, PAGE_READWRITE, &old), STATUS_SUCCESS);
    EXPECT_EQ(space.protect(me, &at, &size, PAGE_NOACCESS, &old), STATUS_INVALID_PAGE_PROTECTION);
    space.unsecure(me, h);
}

TEST_F(Space, ViewsShareThePagesTheyWereMadeOf) {
    uint64_t at = commit(2 * 4096, me);
    uint64_t pfns[2] = {*space.pfn_of(at + 4096), *space.pfn_of(at)};  // the other way round
    auto view = space.map_pages(me, pfns, 2, PAGE_READWRITE);
    ASSERT_TRUE(view);
    memcpy(reinterpret_cast<void *>(*view), "x", 2);
    EXPECT_EQ(*reinterpret_cast<char *>(at + 4096), 'x');
    EXPECT_EQ(release(*view, me), STATUS_UNABLE_TO_FREE_VM);
    EXPECT_FALSE(space.unmap_view(other, *view, 2));
    EXPECT_FALSE(space.unmap_view(me, *view, 1));
    EXPECT_TRUE(space.unmap_view(me, *view, 2));
}

TEST_F(Space, QueryTellsRuns) {
    uint64_t at = commit(4 * 4096, me), middle = at + 4096, size = 4096;
    uint32_t old;
    space.protect(me, &middle, &size, PAGE_READONLY, &old);
    MemoryInformation i = space.query(me, at);
    EXPECT_EQ(i.RegionSize, 4096u);
    EXPECT_EQ(i.Protect, uint32_t{PAGE_READWRITE});
    i = space.query(me, at + 2 * 4096 + 5);
    EXPECT_EQ(i.BaseAddress, at + 2 * 4096);
    EXPECT_EQ(i.AllocationBase, at);
    EXPECT_EQ(i.RegionSize, 2 * 4096u);
    EXPECT_EQ(space.query(other, at).State, uint32_t{MEM_FREE});
}

TEST_F(Space, AUsedUpPoolFailsWithoutLeaving) {
    uint64_t at = 0, size = 64 << 20;
    EXPECT_EQ(space.allocate(me, &at, &size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE), STATUS_NO_MEMORY);
    EXPECT_EQ(pool.free_pages(), pool.total_pages() - 1);
}

TEST_F(Space, AddressesAreNotReusedAtOnce) {
    uint64_t a = commit(4096, me);
    release(a, me);
    EXPECT_NE(commit(4096, me), a);
}

}  // namespace
