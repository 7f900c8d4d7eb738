// SPDX-License-Identifier: GPL-2.0-or-later
//
// nt_io.h: what the I/O manager and drivers pass each other: device and driver objects, IRPs, resources, PnP. Part of nt_types.h.
#pragma once

#include "nt_basic.h"

namespace nt {

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

}  // namespace nt
