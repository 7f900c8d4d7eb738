/* SPDX-License-Identifier: GPL-2.0-or-later */
/* compat.h: what changed in QEMU's internal interfaces between 7.2 and 10.x, as far as the snic device uses it. */
#ifndef SNIC_COMPAT_H
#define SNIC_COMPAT_H

#include "qemu/osdep.h"
#include "qemu/units.h"
#include "qemu/rcu.h"
#include "qemu/error-report.h"
#include "qemu/main-loop.h"
#include "qemu/module.h"
#include "qapi/error.h"
#include "exec/cpu-common.h"
#include "hw/pci/msix.h"
/* Headers that moved. */
#if __has_include("system/memory.h")
#include "system/memory.h"
#else
#include "exec/memory.h"
#endif
#if __has_include("hw/core/qdev-properties.h")
#include "hw/core/qdev-properties.h"
#else
#include "hw/qdev-properties.h"
#endif
#include "migration/vmstate.h"
#if __has_include("hw/pci/pci_device.h")
#include "hw/pci/pci_device.h"
#else
#include "hw/pci/pci.h"
#endif

#define SNIC_QEMU_AT_LEAST(major, minor) \
    (QEMU_VERSION_MAJOR > (major) || (QEMU_VERSION_MAJOR == (major) && QEMU_VERSION_MINOR >= (minor)))

#if SNIC_QEMU_AT_LEAST(9, 0)
#define snic_lock_bql() bql_lock()
#define snic_unlock_bql() bql_unlock()
#else
#define snic_lock_bql() qemu_mutex_lock_iothread()
#define snic_unlock_bql() qemu_mutex_unlock_iothread()
#endif

#if SNIC_QEMU_AT_LEAST(10, 0)
#define snic_is_direct(mr, write) memory_access_is_direct(mr, write, MEMTXATTRS_UNSPECIFIED)
#define SNIC_PROPERTIES_END
#else
#define snic_is_direct(mr, write) memory_access_is_direct(mr, write)
#define SNIC_PROPERTIES_END DEFINE_PROP_END_OF_LIST(),
#endif

/* What type registration takes as const. */
#if SNIC_QEMU_AT_LEAST(10, 1)
#define SNIC_CLASS_CONST const
#else
#define SNIC_CLASS_CONST
#endif

#if SNIC_QEMU_AT_LEAST(9, 2)
#define snic_set_reset(dc, fn) device_class_set_legacy_reset(dc, fn)
#else
#define snic_set_reset(dc, fn) ((dc)->reset = (fn))
#endif

#if SNIC_QEMU_AT_LEAST(8, 1)
#if __has_include("system/ramblock.h")
#include "system/ramblock.h"
#else
#include "exec/ramblock.h"
#endif
#define snic_ram_fd_offset(rb) ((uint64_t)(rb)->fd_offset)
#else
#define snic_ram_fd_offset(rb) ((uint64_t)0)
#endif

#endif
