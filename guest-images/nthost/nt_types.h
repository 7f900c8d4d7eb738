// SPDX-License-Identifier: GPL-2.0-or-later
//
// nt_types.h: the NT data types that cross the PE boundary, with the x64 Windows layout, usable from an LP64
// translation unit. Names and layouts are those of the public driver headers; nt_layout.inc lists the offsets,
// nt_types.h is checked against it here at compile time and the real headers are checked against the same list by the
// test driver's build.
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

// ---- I/O manager

struct DEVICE_OBJECT;
struct DRIVER_OBJECT;
struct FILE_OBJECT;
struct IRP;

using DRIVER_DISPATCH = NTSTATUS NTAPI(DEVICE_OBJECT *, IRP *);
using DRIVER_CANCEL = void NTAPI(DEVICE_OBJECT *, IRP *);
using IO_COMPLETION_ROUTINE = NTSTATUS NTAPI(DEVICE_OBJECT *, IRP *, PVOID);

struct DRIVER_EXTENSION {
    DRIVER_OBJECT *DriverObject;
    NTSTATUS(NTAPI *AddDevice)(DRIVER_OBJECT *, DEVICE_OBJECT *);
    ULONG Count;
    UNICODE_STRING ServiceKeyName;
};

struct DRIVER_OBJECT {
    SHORT Type, Size;
    DEVICE_OBJECT *DeviceObject;
    ULONG Flags;
    PVOID DriverStart;
    ULONG DriverSize;
    PVOID DriverSection;
    DRIVER_EXTENSION *DriverExtension;
    UNICODE_STRING DriverName;
    UNICODE_STRING *HardwareDatabase;
    PVOID FastIoDispatch;
    NTSTATUS(NTAPI *DriverInit)(DRIVER_OBJECT *, UNICODE_STRING *);
    PVOID DriverStartIo;
    void(NTAPI *DriverUnload)(DRIVER_OBJECT *);
    DRIVER_DISPATCH *MajorFunction[28];
};

struct DEVICE_OBJECT {
    SHORT Type;
    USHORT Size;
    LONG ReferenceCount;
    DRIVER_OBJECT *DriverObject;
    DEVICE_OBJECT *NextDevice, *AttachedDevice;
    IRP *CurrentIrp;
    PVOID Timer;
    ULONG Flags, Characteristics;
    PVOID Vpb, DeviceExtension;
    ULONG DeviceType;
    CCHAR StackSize;
    UCHAR Queue[0x98 - 0x50];
    ULONG AlignmentRequirement;
    KDEVICE_QUEUE DeviceQueue;
    KDPC Dpc;
    ULONG ActiveThreadCount;
    PVOID SecurityDescriptor;
    KEVENT DeviceLock;
    USHORT SectorSize, Spare1;
    PVOID DeviceObjectExtension, Reserved;
};

enum : ULONG {
    DO_BUFFERED_IO = 0x4,
    DO_EXCLUSIVE = 0x8,
    DO_DIRECT_IO = 0x10,
    DO_DEVICE_INITIALIZING = 0x80,
    DO_BUS_ENUMERATED_DEVICE = 0x1000,
    DO_POWER_PAGABLE = 0x2000,
};

struct FILE_OBJECT {
    SHORT Type, Size;
    DEVICE_OBJECT *DeviceObject;
    PVOID Vpb, FsContext, FsContext2, SectionObjectPointer, PrivateCacheMap;
    NTSTATUS FinalStatus;
    FILE_OBJECT *RelatedFileObject;
    BOOLEAN LockOperation, DeletePending, ReadAccess, WriteAccess, DeleteAccess, SharedRead, SharedWrite, SharedDelete;
    ULONG Flags;
    UNICODE_STRING FileName;
    LONGLONG CurrentByteOffset;
    ULONG Waiters, Busy;
    PVOID LastLock;
    KEVENT Lock, Event;
    PVOID CompletionContext;
    ULONG_PTR IrpListLock;
    LIST_ENTRY IrpList;
    PVOID FileObjectExtension;
};

struct IO_STACK_LOCATION {
    UCHAR MajorFunction, MinorFunction, Flags, Control;
    union {
        struct {
            PVOID SecurityContext;
            ULONG Options;
            alignas(8) USHORT FileAttributes;
            USHORT ShareAccess;
            alignas(8) ULONG EaLength;
        } Create;
        struct {
            ULONG Length;
            alignas(8) ULONG Key;
            LONGLONG ByteOffset;
        } Read;
        struct {
            ULONG OutputBufferLength;
            alignas(8) ULONG InputBufferLength;
            alignas(8) ULONG IoControlCode;
            PVOID Type3InputBuffer;
        } DeviceIoControl;
        struct {
            PVOID AllocatedResources, AllocatedResourcesTranslated;
        } StartDevice;
        struct {
            ULONG Type;
        } QueryDeviceRelations;
        struct {
            const GUID *InterfaceType;
            USHORT Size, Version;
            PVOID Interface, InterfaceSpecificData;
        } QueryInterface;
        struct {
            PVOID Capabilities;
        } DeviceCapabilities;
        struct {
            ULONG WhichSpace;
            PVOID Buffer;
            ULONG Offset;
            alignas(8) ULONG Length;
        } ReadWriteConfig;
        struct {
            ULONG IdType;
        } QueryId;
        struct {
            ULONG SystemContext;
            alignas(8) ULONG Type;
            alignas(8) ULONG State;
            alignas(8) ULONG ShutdownType;
        } Power;
        struct {
            PVOID Argument1, Argument2, Argument3, Argument4;
        } Others;
    } Parameters;
    DEVICE_OBJECT *DeviceObject;
    FILE_OBJECT *FileObject;
    IO_COMPLETION_ROUTINE *CompletionRoutine;
    PVOID Context;
};

enum : UCHAR {
    SL_PENDING_RETURNED = 0x01,
    SL_ERROR_RETURNED = 0x02,
    SL_INVOKE_ON_CANCEL = 0x20,
    SL_INVOKE_ON_SUCCESS = 0x40,
    SL_INVOKE_ON_ERROR = 0x80,
};

struct IRP {
    SHORT Type;
    USHORT Size;
    MDL *MdlAddress;
    ULONG Flags;
    union {
        IRP *MasterIrp;
        LONG IrpCount;
        PVOID SystemBuffer;
    } AssociatedIrp;
    LIST_ENTRY ThreadListEntry;
    IO_STATUS_BLOCK IoStatus;
    CCHAR RequestorMode;
    BOOLEAN PendingReturned;
    CCHAR StackCount, CurrentLocation;
    BOOLEAN Cancel;
    KIRQL CancelIrql;
    CCHAR ApcEnvironment;
    UCHAR AllocationFlags;
    IO_STATUS_BLOCK *UserIosb;
    KEVENT *UserEvent;
    struct {
        PVOID UserApcRoutine, UserApcContext;
    } Overlay;
    DRIVER_CANCEL *CancelRoutine;
    PVOID UserBuffer;
    struct {
        PVOID DriverContext[4];
        PVOID Thread;
        PVOID AuxiliaryBuffer;
        LIST_ENTRY ListEntry;
        IO_STACK_LOCATION *CurrentStackLocation;
        FILE_OBJECT *OriginalFileObject;
        PVOID Spare;
    } Tail;
};

enum : UCHAR {
    IRP_MJ_CREATE = 0x00,
    IRP_MJ_CLOSE = 0x02,
    IRP_MJ_READ = 0x03,
    IRP_MJ_WRITE = 0x04,
    IRP_MJ_DEVICE_CONTROL = 0x0e,
    IRP_MJ_INTERNAL_DEVICE_CONTROL = 0x0f,
    IRP_MJ_CLEANUP = 0x12,
    IRP_MJ_POWER = 0x16,
    IRP_MJ_SYSTEM_CONTROL = 0x17,
    IRP_MJ_PNP = 0x1b,
    IRP_MJ_MAXIMUM = 0x1b,
};

enum : UCHAR {
    IRP_MN_START_DEVICE = 0x00,
    IRP_MN_QUERY_REMOVE_DEVICE = 0x01,
    IRP_MN_REMOVE_DEVICE = 0x02,
    IRP_MN_CANCEL_REMOVE_DEVICE = 0x03,
    IRP_MN_STOP_DEVICE = 0x04,
    IRP_MN_QUERY_STOP_DEVICE = 0x05,
    IRP_MN_CANCEL_STOP_DEVICE = 0x06,
    IRP_MN_QUERY_DEVICE_RELATIONS = 0x07,
    IRP_MN_QUERY_INTERFACE = 0x08,
    IRP_MN_QUERY_CAPABILITIES = 0x09,
    IRP_MN_QUERY_RESOURCES = 0x0a,
    IRP_MN_QUERY_RESOURCE_REQUIREMENTS = 0x0b,
    IRP_MN_QUERY_DEVICE_TEXT = 0x0c,
    IRP_MN_FILTER_RESOURCE_REQUIREMENTS = 0x0d,
    IRP_MN_READ_CONFIG = 0x0f,
    IRP_MN_WRITE_CONFIG = 0x10,
    IRP_MN_QUERY_ID = 0x13,
    IRP_MN_QUERY_PNP_DEVICE_STATE = 0x14,
    IRP_MN_QUERY_BUS_INFORMATION = 0x15,
    IRP_MN_SURPRISE_REMOVAL = 0x17,
    IRP_MN_SET_POWER = 0x02,
    IRP_MN_QUERY_POWER = 0x03,
};

#pragma pack(push, 4)
struct CM_PARTIAL_RESOURCE_DESCRIPTOR {
    UCHAR Type, ShareDisposition;
    USHORT Flags;
    union {
        struct {
            int64_t Start;
            ULONG Length;
        } Memory;
        struct {
            ULONG Level, Vector;
            KAFFINITY Affinity;
        } Interrupt;
        struct {
            USHORT Reserved, MessageCount;
            ULONG Vector;
            KAFFINITY Affinity;
        } MessageRaw;
        struct {
            ULONG Data[3];
        } DevicePrivate;
    } u;
};
#pragma pack(pop)

struct CM_RESOURCE_LIST_HEAD {
    ULONG Count;          // full descriptors: always 1 here
    ULONG InterfaceType;  // PCIBus = 5
    ULONG BusNumber;
    USHORT Version, Revision;
    ULONG PartialCount;
};

enum : UCHAR { CmResourceTypePort = 1, CmResourceTypeInterrupt = 2, CmResourceTypeMemory = 3 };
enum : USHORT {
    CM_RESOURCE_INTERRUPT_LEVEL_SENSITIVE = 0,
    CM_RESOURCE_INTERRUPT_LATCHED = 1,
    CM_RESOURCE_INTERRUPT_MESSAGE = 2,
    CM_RESOURCE_MEMORY_READ_WRITE = 0,
    CM_RESOURCE_MEMORY_BAR_64 = 0x0080,
};

struct IO_INTERRUPT_MESSAGE_INFO_ENTRY {
    PHYSICAL_ADDRESS MessageAddress;
    KAFFINITY TargetProcessorSet;
    PVOID InterruptObject;
    ULONG MessageData, Vector;
    KIRQL Irql;
    ULONG Mode, Polarity;
};

struct IO_INTERRUPT_MESSAGE_INFO {
    KIRQL UnifiedIrql;
    ULONG MessageCount;
    IO_INTERRUPT_MESSAGE_INFO_ENTRY MessageInfo[1];
};

using KSERVICE_ROUTINE = BOOLEAN NTAPI(PVOID, PVOID);
using KMESSAGE_SERVICE_ROUTINE = BOOLEAN NTAPI(PVOID, PVOID, ULONG);

struct IO_CONNECT_INTERRUPT_PARAMETERS {
    ULONG Version;
    union {
        struct {
            DEVICE_OBJECT *PhysicalDeviceObject;
            PVOID *InterruptObject;
            KSERVICE_ROUTINE *ServiceRoutine;
            PVOID ServiceContext;
            ULONG_PTR *SpinLock;
            KIRQL SynchronizeIrql;
            BOOLEAN FloatingSave, ShareVector;
            ULONG Vector;
            KIRQL Irql;
            ULONG InterruptMode;
            KAFFINITY ProcessorEnableMask;
        } FullySpecified;
        struct {
            DEVICE_OBJECT *PhysicalDeviceObject;
            PVOID *InterruptObject;
            KSERVICE_ROUTINE *ServiceRoutine;
            PVOID ServiceContext;
            ULONG_PTR *SpinLock;
            KIRQL SynchronizeIrql;
            BOOLEAN FloatingSave;
        } LineBased;
        struct {
            DEVICE_OBJECT *PhysicalDeviceObject;
            union {
                PVOID *Generic;
                IO_INTERRUPT_MESSAGE_INFO **InterruptMessageTable;
                PVOID *InterruptObject;
            } ConnectionContext;
            KMESSAGE_SERVICE_ROUTINE *MessageServiceRoutine;
            PVOID ServiceContext;
            ULONG_PTR *SpinLock;
            KIRQL SynchronizeIrql;
            BOOLEAN FloatingSave;
            KSERVICE_ROUTINE *FallBackServiceRoutine;
        } MessageBased;
    };
};

struct DMA_ADAPTER {
    USHORT Version, Size;
    PVOID *DmaOperations;
};

struct BUS_INTERFACE_STANDARD {
    USHORT Size, Version;
    PVOID Context;
    PVOID InterfaceReference, InterfaceDereference, TranslateBusAddress, GetDmaAdapter, SetBusData, GetBusData;
};

struct IO_CSQ {
    ULONG Type;
    PVOID CsqInsertIrp, CsqRemoveIrp, CsqPeekNextIrp, CsqAcquireLock, CsqReleaseLock, CsqCompleteCanceledIrp;
    PVOID ReservePointer;
};

struct IO_CSQ_IRP_CONTEXT {
    ULONG Type;
    IRP *Irp;
    IO_CSQ *Csq;
};

struct KEY_VALUE_PARTIAL_INFORMATION {
    ULONG TitleIndex, Type, DataLength;
    UCHAR Data[1];
};

// ---- exceptions

struct alignas(16) M128 {
    uint64_t lo, hi;
};

struct alignas(16) CONTEXT {
    uint64_t PHome[6];
    ULONG ContextFlags, MxCsr;
    USHORT SegCs, SegDs, SegEs, SegFs, SegGs, SegSs;
    ULONG EFlags;
    uint64_t Dr[6];
    uint64_t Reg[16];  // rax rcx rdx rbx rsp rbp rsi rdi r8..r15
    uint64_t Rip;
    UCHAR FltHeader[32];
    M128 Legacy[8];
    M128 Xmm[16];
    UCHAR FltRest[96];
    M128 VectorRegister[26];
    uint64_t VectorControl, DebugControl, LastBranch[4];
};

enum Register { RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15 };

inline constexpr ULONG CONTEXT_FULL_FLAGS = 0x0010000b;

struct EXCEPTION_RECORD {
    NTSTATUS ExceptionCode;
    ULONG ExceptionFlags;
    EXCEPTION_RECORD *Nested;
    PVOID ExceptionAddress;
    ULONG NumberParameters;
    uint64_t ExceptionInformation[15];
};

struct EXCEPTION_POINTERS {
    EXCEPTION_RECORD *Record;
    CONTEXT *Context;
};

enum : ULONG {
    EXCEPTION_NONCONTINUABLE = 0x01,
    EXCEPTION_UNWINDING = 0x02,
    EXCEPTION_EXIT_UNWIND = 0x04,
    EXCEPTION_STACK_INVALID = 0x08,
    EXCEPTION_NESTED_CALL = 0x10,
    EXCEPTION_TARGET_UNWIND = 0x20,
    EXCEPTION_COLLIDED_UNWIND = 0x40,
};

struct RUNTIME_FUNCTION {
    ULONG Begin, End, UnwindInfo;
};

struct DISPATCHER_CONTEXT;
using EXCEPTION_ROUTINE = int NTAPI(EXCEPTION_RECORD *, uint64_t frame, CONTEXT *, DISPATCHER_CONTEXT *);

struct DISPATCHER_CONTEXT {
    uint64_t ControlPc, ImageBase;
    RUNTIME_FUNCTION *FunctionEntry;
    uint64_t EstablisherFrame, TargetIp;
    CONTEXT *ContextRecord;
    EXCEPTION_ROUTINE *LanguageHandler;
    PVOID HandlerData;
    PVOID HistoryTable;
    ULONG ScopeIndex, Fill0;
};

enum { ExceptionContinueExecution, ExceptionContinueSearch, ExceptionNestedException, ExceptionCollidedUnwind };

#define NT_SIZE(type, size) static_assert(sizeof(type) == (size), #type);
#define NT_OFFSET(type, member, offset) static_assert(offsetof(type, member) == (offset), #type "." #member);
#include "nt_layout.inc"
#undef NT_SIZE
#undef NT_OFFSET

inline void list_init(LIST_ENTRY *h) {
    h->Flink = h->Blink = h;
}
inline bool list_empty(const LIST_ENTRY *h) {
    return h->Flink == h;
}
inline void list_add_tail(LIST_ENTRY *h, LIST_ENTRY *e) {
    e->Flink = h;
    e->Blink = h->Blink;
    h->Blink->Flink = e;
    h->Blink = e;
}
inline void list_remove(LIST_ENTRY *e) {
    e->Blink->Flink = e->Flink;
    e->Flink->Blink = e->Blink;
}

}  // namespace nt
