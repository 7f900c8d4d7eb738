// SPDX-License-Identifier: GPL-2.0-or-later
//
// nt_basic.h: NT's scalar types, lists and strings, dispatcher objects, MDLs. Part of nt_types.h, which checks the layouts.
#pragma once

#include <cstddef>
#include <cstdint>

#define NTAPI __attribute__((ms_abi))

namespace nt {

using UCHAR = uint8_t;
using CCHAR = int8_t;
using BOOLEAN = uint8_t;
using USHORT = uint16_t;
using SHORT = int16_t;
using WCHAR = char16_t;
using ULONG = uint32_t;
using LONG = int32_t;
using DWORD = uint32_t;
using BOOL = int32_t;
using ULONGLONG = uint64_t;
using LONGLONG = int64_t;
using SIZE_T = uint64_t;
using ULONG_PTR = uint64_t;
using LONG_PTR = int64_t;
using PVOID = void *;
using HANDLE = void *;
using NTSTATUS = int32_t;
using KIRQL = uint8_t;
using KAFFINITY = uint64_t;
using KPRIORITY = int32_t;
using PHYSICAL_ADDRESS = int64_t;

inline constexpr BOOLEAN TRUE_ = 1, FALSE_ = 0;
inline constexpr uint64_t PAGE_SIZE = 4096;
inline constexpr unsigned PAGE_SHIFT = 12;

inline constexpr KIRQL PASSIVE_LEVEL = 0, APC_LEVEL = 1, DISPATCH_LEVEL = 2, DEVICE_LEVEL = 8, HIGH_LEVEL = 15;
inline constexpr CCHAR KernelMode = 0, UserMode = 1;

struct LIST_ENTRY {
    LIST_ENTRY *Flink, *Blink;
};

struct UNICODE_STRING {
    USHORT Length, MaximumLength;
    WCHAR *Buffer;
};

struct ANSI_STRING {
    USHORT Length, MaximumLength;
    char *Buffer;
};

struct IO_STATUS_BLOCK {
    union {
        NTSTATUS Status;
        PVOID Pointer;
    };
    ULONG_PTR Information;
};

struct OBJECT_ATTRIBUTES {
    ULONG Length;
    HANDLE RootDirectory;
    UNICODE_STRING *ObjectName;
    ULONG Attributes;
    PVOID SecurityDescriptor, SecurityQualityOfService;
};

struct GUID {
    uint32_t Data1;
    uint16_t Data2, Data3;
    uint8_t Data4[8];
    bool operator==(const GUID &) const = default;
};

// ---- dispatcher objects

enum : uint8_t {
    NotificationEventType = 0,
    SynchronizationEventType = 1,
    MutantType = 2,
    ProcessType = 3,
    SemaphoreType = 5,
    ThreadType = 6,
    NotificationTimerType = 8,
    SynchronizationTimerType = 9,
};

struct DISPATCHER_HEADER {
    UCHAR Type, Absolute, Size, Inserted;
    LONG SignalState;
    LIST_ENTRY WaitListHead;
};

struct KEVENT {
    DISPATCHER_HEADER Header;
};

struct KSEMAPHORE {
    DISPATCHER_HEADER Header;
    LONG Limit;
};

struct KMUTEX {
    DISPATCHER_HEADER Header;
    LIST_ENTRY MutantListEntry;
    PVOID OwnerThread;
    BOOLEAN Abandoned;
    UCHAR ApcDisable;
};

struct KDPC;
using KDEFERRED_ROUTINE = void NTAPI(KDPC *, PVOID, PVOID, PVOID);

struct KDPC {
    UCHAR Type, Importance;
    USHORT Number;
    LIST_ENTRY DpcListEntry;
    KDEFERRED_ROUTINE *DeferredRoutine;
    PVOID DeferredContext, SystemArgument1, SystemArgument2, DpcData;
};

struct KTIMER {
    DISPATCHER_HEADER Header;
    ULONGLONG DueTime;
    LIST_ENTRY TimerListEntry;
    KDPC *Dpc;
    ULONG Processor;
    LONG Period;
};

struct FAST_MUTEX {
    LONG Count;
    PVOID Owner;
    ULONG Contention;
    KEVENT Event;
    ULONG OldIrql;
};

struct ERESOURCE {
    LIST_ENTRY SystemResourcesList;
    PVOID OwnerTable;
    SHORT ActiveCount;
    USHORT Flag;
    PVOID SharedWaiters, ExclusiveWaiters;
    UCHAR Rest[0x68 - 0x30];
};

struct KDEVICE_QUEUE {
    SHORT Type, Size;
    LIST_ENTRY DeviceListHead;
    ULONG_PTR Lock;
    BOOLEAN Busy;
};

struct KAPC_STATE {
    LIST_ENTRY ApcListHead[2];
    PVOID Process;
    BOOLEAN KernelApcInProgress, KernelApcPending, UserApcPending;
};

struct WORK_QUEUE_ITEM {
    LIST_ENTRY List;
    void(NTAPI *WorkerRoutine)(PVOID);
    PVOID Parameter;
};

struct alignas(16) SLIST_HEADER {
    uint64_t Word[2];
};

struct SLIST_ENTRY {
    SLIST_ENTRY *Next;
};

struct IO_REMOVE_LOCK_COMMON_BLOCK {
    BOOLEAN Removed;
    BOOLEAN Reserved[3];
    LONG IoCount;
    KEVENT RemoveEvent;
};

struct KLOCK_QUEUE_HANDLE {
    PVOID Next, Lock;
    KIRQL OldIrql;
};

// ---- memory

struct MDL {
    MDL *Next;
    SHORT Size, MdlFlags;
    PVOID Process, MappedSystemVa, StartVa;
    ULONG ByteCount, ByteOffset;
    uint64_t *pfns() { return reinterpret_cast<uint64_t *>(this + 1); }
};

enum : SHORT {
    MDL_MAPPED_TO_SYSTEM_VA = 0x0001,
    MDL_PAGES_LOCKED = 0x0002,
    MDL_SOURCE_IS_NONPAGED_POOL = 0x0004,
    MDL_ALLOCATED_FIXED_SIZE = 0x0008,
    MDL_PARTIAL = 0x0010,
    MDL_PARTIAL_HAS_BEEN_MAPPED = 0x0020,
    MDL_WRITE_OPERATION = 0x0080,
    MDL_IO_SPACE = 0x0800,
};

enum class LockOperation : int { Read = 0, Write = 1, Modify = 2 };

}  // namespace nt
