// SPDX-License-Identifier: GPL-2.0-or-later
// Objects, handles, names, waits, formats and options: with a machine, but without PE files.
#include <gtest/gtest.h>

#include <thread>

#include "crt.h"
#include "fault.h"
#include "imports.h"
#include "object.h"
#include "options.h"
#include "process.h"
#include "registry.h"
#include "verifier.h"
#include "wait.h"

using namespace nth;
using namespace nt;

namespace {

class Machine1 : public testing::Environment {
    void SetUp() override {
        prepare_imports();
        start_machine(32 << 20);
        install_fault_handlers();
        adopt_system_thread("test");
    }
};
const auto *g_environment = testing::AddGlobalTestEnvironment(new Machine1);

// A second NT thread that runs f.
template <class F>
std::thread nt_thread(F f) {
    return std::thread([f] {
        adopt_system_thread("test2");
        f();
    });
}

TEST(Handles, AreMultiplesOfFourAndReferenceTheirObject) {
    HandleTable table;
    auto *e = object_create<KEVENT>(ObjectKind::Event);
    uint64_t h = table.insert(e);
    EXPECT_EQ(h % 4, 0u);
    EXPECT_NE(h, 0u);
    NTSTATUS s;
    void *body = table.reference(h + 1, ObjectKind::Event, &s);  // the low bits are ignored
    EXPECT_EQ(body, e);
    object_release(body);
    EXPECT_EQ(table.reference(h, ObjectKind::Semaphore, &s), nullptr);
    EXPECT_EQ(s, STATUS_OBJECT_TYPE_MISMATCH);
    object_release(e);
    EXPECT_EQ(table.close(h, nullptr), STATUS_SUCCESS);
    EXPECT_EQ(table.close(h, nullptr), STATUS_INVALID_HANDLE);
    EXPECT_EQ(table.reference(h, ObjectKind::Any, &s), nullptr);
}

TEST(Handles, AClosedValueIsNotReusedAtOnce) {
    HandleTable table;
    auto *e = object_create<KEVENT>(ObjectKind::Event);
    uint64_t h = table.insert(e);
    table.close(h, nullptr);
    EXPECT_NE(table.insert(e), h);
    for (uint64_t x : table.list()) table.close(x, nullptr);
    object_release(e);
}

TEST(Names, LinksLeadToDevicesWhateverTheirSpelling) {
    auto *e = object_create<KEVENT>(ObjectKind::Event);
    ASSERT_TRUE(name_space().insert(u"\\Device\\Thing", e));
    EXPECT_FALSE(name_space().insert(u"\\DEVICE\\thing", e));
    ASSERT_TRUE(name_space().link(u"\\DosDevices\\Thing", u"\\Device\\Thing"));
    std::u16string rest;
    void *found = name_space().resolve(u"\\??\\THING\\sub\\x", &rest);
    EXPECT_EQ(found, e);
    EXPECT_EQ(rest, u"\\sub\\x");
    object_release(found);
    EXPECT_TRUE(name_space().unlink(u"\\??\\Thing"));
    EXPECT_EQ(name_space().resolve(u"\\??\\Thing", &rest), nullptr);
    EXPECT_TRUE(name_space().remove(u"\\device\\thing"));
    object_release(e);
}

TEST(Waits, SynchronizationEventReleasesOneWaiterOnly) {
    KEVENT e, done;
    init_event(&e, true, false);
    init_event(&done, false, false);
    std::atomic<int> through{0};
    auto wait = [&] {
        wait_for_one(&e.Header);
        through++;
        set_event(&done);
    };
    auto a = nt_thread(wait), b = nt_thread(wait);
    usleep_host(20000);
    set_event(&e);
    wait_for_one(&done.Header);
    usleep_host(20000);
    EXPECT_EQ(through, 1);
    set_event(&e);
    a.join();
    b.join();
    EXPECT_EQ(through, 2);
    EXPECT_EQ(e.Header.SignalState, 0);
}

TEST(Waits, ForAllTakesNothingUntilEverythingIsThere) {
    KEVENT a, b;
    init_event(&a, true, true);
    init_event(&b, true, false);
    DISPATCHER_HEADER *both[] = {&a.Header, &b.Header};
    EXPECT_EQ(wait_for(both, true, false, monotonic_ns() + 5'000'000), STATUS_TIMEOUT);
    EXPECT_EQ(a.Header.SignalState, 1);
    set_event(&b);
    EXPECT_EQ(wait_for(both, true, false, 0), STATUS_SUCCESS);
    EXPECT_EQ(a.Header.SignalState, 0);
    EXPECT_EQ(b.Header.SignalState, 0);
}

TEST(Waits, ForAnyTellsWhichAndTakesThatOne) {
    KEVENT a, b;
    init_event(&a, true, false);
    init_event(&b, true, true);
    DISPATCHER_HEADER *both[] = {&a.Header, &b.Header};
    EXPECT_EQ(wait_for(both, false, false, 0), 1);
    EXPECT_EQ(b.Header.SignalState, 0);
    EXPECT_EQ(wait_for(both, false, false, 0), STATUS_TIMEOUT);
}

TEST(Waits, MutexIsRecursiveAndAbandonedByADeadOwner) {
    KMUTEX m;
    init_mutex(&m, nullptr);
    EXPECT_EQ(wait_for_one(&m.Header, 0), STATUS_SUCCESS);
    EXPECT_EQ(wait_for_one(&m.Header, 0), STATUS_SUCCESS);
    nt_thread([&] {
        EXPECT_EQ(wait_for_one(&m.Header, 0), STATUS_TIMEOUT);
        EXPECT_EQ(release_mutex(&m, nullptr), STATUS_MUTANT_NOT_OWNED);
    }).join();
    release_mutex(&m, nullptr);
    release_mutex(&m, nullptr);
    nt_thread([&] {
        wait_for_one(&m.Header);
        abandon_mutexes(current());
    }).join();
    EXPECT_EQ(wait_for_one(&m.Header, 0), STATUS_ABANDONED_WAIT_0);
    release_mutex(&m, nullptr);
}

TEST(Waits, SemaphoreHasALimit) {
    KSEMAPHORE s;
    init_semaphore(&s, 1, 2);
    EXPECT_TRUE(release_semaphore(&s, 1, nullptr));
    EXPECT_FALSE(release_semaphore(&s, 1, nullptr));
    EXPECT_EQ(wait_for_one(&s.Header, 0), STATUS_SUCCESS);
    EXPECT_EQ(wait_for_one(&s.Header, 0), STATUS_SUCCESS);
    EXPECT_EQ(wait_for_one(&s.Header, 0), STATUS_TIMEOUT);
}

TEST(Timers, SignalWhenDueAndAgainEveryPeriod) {
    KTIMER t;
    init_timer(&t, true);
    set_timer(&t, -10000, 1, nullptr);  // 1 ms, then every ms
    for (int i = 0; i < 3; i++) {
        while (expire_timers(monotonic_ns()) > monotonic_ns() && t.Header.SignalState == 0) usleep_host(100);
        EXPECT_EQ(wait_for_one(&t.Header, 0), STATUS_SUCCESS);
    }
    EXPECT_TRUE(cancel_timer(&t));
    EXPECT_FALSE(cancel_timer(&t));
}

std::string ms_printf(const char *format, ...) __attribute__((ms_abi));
std::string ms_printf(const char *format, ...) {
    __builtin_ms_va_list args;
    __builtin_ms_va_start(args, format);
    std::string s = format_ms(format, args);
    __builtin_ms_va_end(args);
    return s;
}

TEST(Printf, KnowsWindowsWidths) {
    EXPECT_EQ(ms_printf("%ld %lu", -1, 0xffffffffu), "-1 4294967295");
    EXPECT_EQ(ms_printf("%llu %I64d %I32x %zu", 1ull << 40, -5ll, 0x123, size_t{9}), "1099511627776 -5 123 9");
    EXPECT_EQ(ms_printf("%hhu %hd", 0x1ff, 0x18000), "255 -32768");
}

TEST(Printf, FormatsFloatingPoint) {
    EXPECT_EQ(ms_printf("%.2f|%8.3f|%-8.1f|", 3.14159, 2.5, 1.25), "3.14|   2.500|1.2     |");
    EXPECT_EQ(ms_printf("%e %g", 12345.678, 1e-7), "1.234568e+004 1e-007");
}

TEST(Printf, FormatsTextAndPointers) {
    EXPECT_EQ(ms_printf("%-5s|%5s|%.2s|%c|%%", "ab", "cd", "efgh", 'x'), "ab   |   cd|ef|x|%");
    EXPECT_EQ(ms_printf("%ls %S %s", u"wide", u"too", static_cast<char *>(nullptr)), "wide too (null)");
    EXPECT_EQ(ms_printf("%p", reinterpret_cast<void *>(0x1234)), "0000000000001234");
    EXPECT_EQ(ms_printf("%*d|%-*d|%.*f", 5, 42, 5, 42, 1, 2.25), "   42|42   |2.2");
}

TEST(Imports, AreFoundInAnyCaseAndMissingOnesAreNot) {
    EXPECT_NE(find_import("KERNEL32.dll", "CreateFileA"), nullptr);
    EXPECT_NE(find_import("HAL.dll", "KeQueryPerformanceCounter"), nullptr);
    EXPECT_EQ(find_import("KERNEL32.dll", "createfilea"), nullptr);
    EXPECT_EQ(find_import("user32.dll", "MessageBoxA"), nullptr);
    EXPECT_TRUE(is_builtin_module("MSVCRT.DLL"));
    EXPECT_FALSE(is_builtin_module("sanprov.dll"));
}

TEST(DeviceOptionText, NamesTheWrongValue) {
    DeviceOptions o("ip=10.0.0.1,vectors=99");
    o.text("ip", "");
    o.number("vectors", 4, 1, 32);
    EXPECT_EQ(o.error(), "device option vectors=99: expected a number from 1 to 32");
    DeviceOptions unknown("colour=red");
    unknown.text("ip", "");
    EXPECT_NE(unknown.error().find("'colour' is unknown"), std::string::npos);
    DeviceOptions choice("revoke=maybe");
    choice.choice("revoke", {"key", "deregister"});
    EXPECT_EQ(choice.error(), "device option revoke=maybe: expected key or deregister");
}

TEST(FailureInjection, FailsTheNthCallOnce) {
    std::string error;
    EXPECT_FALSE(add_failure("pool", &error));
    EXPECT_FALSE(add_failure("disk:1", &error));
    EXPECT_FALSE(add_failure("lock:p=2", &error));
    ASSERT_TRUE(add_failure("secure:2", &error)) << error;
    EXPECT_FALSE(should_fail(Fail::Secure));
    EXPECT_TRUE(should_fail(Fail::Secure));
    EXPECT_FALSE(should_fail(Fail::Secure));
}

TEST(KernelPool, FindsAnOverrun) {
    auto *p = static_cast<uint8_t *>(pool_allocate(100, 0x74736554, true));
    p[100] = 1;
    EXPECT_EXIT(pool_free(p, 0x74736554, true), testing::ExitedWithCode(99), "BAD_POOL_HEADER");
    p[100] = 0xfb;
    pool_free(p, 0x74736554, true);
    EXPECT_EXIT(pool_free(p, 0x74736554, true), testing::ExitedWithCode(99), "freed twice");
}

TEST(KernelPool, NamesLeaksByTag) {
    EXPECT_EQ(pool_leaks(), "");
    void *p = pool_allocate(5000, 0x6b61654c, true);
    EXPECT_EQ(pool_leaks(), "Leak: 1 blocks, 5000 bytes");
    EXPECT_EQ(reinterpret_cast<uint64_t>(p) % 4096, 0u);
    EXPECT_EXIT(pool_free(p, 0x20202020, true), testing::ExitedWithCode(99), "BAD_POOL_CALLER");
    pool_free(p, 0x6b61654c, true);
    EXPECT_EQ(pool_leaks(), "");
}

TEST(RegistryText, KeepsNumbersAndTexts) {
    ASSERT_TRUE(set_device_parameter("Limit=0x20"));
    ASSERT_TRUE(set_device_parameter("Name=abc"));
    EXPECT_FALSE(set_device_parameter("nothing"));
    RegistryValue v;
    ASSERT_TRUE(registry().query(DEVICE_KEY, "LIMIT", &v));
    EXPECT_EQ(v.type, 4u);
    EXPECT_EQ(v.data[0], 0x20);
    ASSERT_TRUE(registry().query(DRIVER_KEY, "name", &v));
    EXPECT_EQ(v.type, 1u);
    EXPECT_EQ(v.data.size(), 8u);
}

}  // namespace
