// SPDX-License-Identifier: GPL-2.0-or-later
//
// mdl.h: memory descriptor lists: locking user pages, describing kernel memory, mapping into kernel and user space.
#pragma once

#include "nt_status.h"
#include "process.h"

namespace nth {

nt::MDL *allocate_mdl(uint64_t address, uint64_t length);  // null: no memory, or longer than an MDL can say
void free_mdl(nt::MDL *mdl);
uint64_t mdl_pages(const nt::MDL *mdl);

nt::NTSTATUS lock_mdl(nt::MDL *mdl, Process *p, nt::LockOperation operation);
void unlock_mdl(nt::MDL *mdl, const char *function);

}  // namespace nth
