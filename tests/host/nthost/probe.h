/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * probe.h: what probe.exe asks of probe.sys, the driver that tries nthost's kernel: one IOCTL, one structure, an
 * operation each way. The operations from PROBE_BAD_FIRST on are mistakes that the verifier has to find.
 */
#ifndef PROBE_H
#define PROBE_H

#define PROBE_IOCTL 0x8000e000u /* CTL_CODE(0x8000, 0x800, METHOD_BUFFERED, FILE_READ_ACCESS | FILE_WRITE_ACCESS) */
#define PROBE_IOCTL_OUT_DIRECT 0x8000e006u
#define PROBE_IOCTL_NEITHER 0x8000e00bu

struct probe_request {
    unsigned int op, pad;
    unsigned long long a, b, c;
    unsigned long long result[4];
};

enum probe_op {
    PROBE_ECHO = 1,   /* result[0] = a ^ b */
    PROBE_READ,       /* __try copy 8 bytes from user address a: result[0] value, result[1] exception code */
    PROBE_WRITE,      /* __try copy value b to user address a: result[1] exception code */
    PROBE_SEH_ORDER,  /* nested __try/__finally; result[0] = order of events as decimal digits */
    PROBE_SEH_FILTER, /* filter continues the search, outer handles: result[0] */
    PROBE_ACCESSOR,   /* as PROBE_READ, by an instruction of the driver's own instead of memcpy */
    PROBE_PEND,       /* pends until PROBE_RELEASE or cancellation */
    PROBE_RELEASE,    /* completes what is pended: result[0] = how many */
    PROBE_DELAY,      /* completes from a DPC after a milliseconds */
    PROBE_WORK,       /* completes from a work item */
    PROBE_THREAD,     /* runs a system thread and waits for it: result[0] = its id != caller's */
    PROBE_SET_EVENT,  /* sets the event with handle a */
    PROBE_LOCK,       /* locks [a, a + b), c != 0 for write; kept in the file: result[1] exception code */
    PROBE_UNLOCK,
    PROBE_PEEK,     /* result[0] = 8 bytes at offset a of the locked range, through a system mapping */
    PROBE_POKE,     /* stores b at offset a of the locked range */
    PROBE_SECURE,   /* secures [a, a + b), c != 0 for write: result[0] handle */
    PROBE_UNSECURE, /* a: handle */
    PROBE_MAP,      /* maps the file's page into the caller: result[0] address */
    PROBE_UNMAP,
    PROBE_ATTACH,  /* attached to process id a: locks [b, b + c) there, result[0] = first 8 bytes */
    PROBE_PROCESS, /* result[0] = id of the caller, result[1] = process notifications of ends seen, [2] = cleanups */
    PROBE_TIME,    /* inlined KeQuerySystemTime, KeQueryInterruptTime, KeQueryTickCount; KeQueryPerformanceCounter */
    PROBE_IRQL,    /* raises and lowers with the inlined functions: result[0] = IRQLs seen */
    PROBE_POOL,    /* allocates a bytes: result[0] = got it */
    PROBE_STRINGS, /* result[0] = 1 when the Rtl string functions agree with the driver */

    PROBE_BAD_FIRST = 100,
    PROBE_BAD_TOUCH_USER = PROBE_BAD_FIRST, /* reads user address a outside __try */
    PROBE_BAD_NULL,
    PROBE_BAD_WAIT_AT_DISPATCH,
    PROBE_BAD_COMPLETE_TWICE,
    PROBE_BAD_LEAK_POOL, /* found at unload */
    PROBE_BAD_LEAK_LOCK, /* locks [a, a + b) and forgets it: found at process end */
    PROBE_BAD_UNLOCK_TWICE,
    PROBE_BAD_OVERRUN,
    PROBE_BAD_WRITE_FREED,
    PROBE_BAD_FREE_TWICE,
    PROBE_BAD_PENDING, /* STATUS_PENDING without IoMarkIrpPending */
    PROBE_BAD_RETURN,  /* returns success and keeps the IRP */
    PROBE_BAD_SPIN_TWICE,
    PROBE_BAD_FAULT_AT_DISPATCH,
    PROBE_BAD_LEAVE_RAISED, /* returns at DISPATCH_LEVEL */
    PROBE_BAD_INFORMATION,  /* Information larger than the output buffer */
    PROBE_BAD_LEAK_VIEW,    /* maps into the caller and forgets it */
    PROBE_BAD_UNSECURE,     /* unsecures a handle that is none */
    PROBE_BAD_DEREFERENCE,
    PROBE_BAD_NO_CANCEL,   /* pends without a cancel routine for ever: found when the process ends */
    PROBE_BAD_FREE_LOCKED, /* IoFreeMdl of a locked MDL */
};

#endif
