// SPDX-License-Identifier: GPL-2.0-or-later
//
// heap.h: user-mode heaps (HeapAlloc, malloc) over the process's pool-backed memory, so that what they return can be
// locked.
//
// Blocks of LARGE bytes and more are allocations of their own: freeing one gives its pages back, through the same
// refusal and flush chain as VirtualFree when it is secured.
#pragma once

#include <cstdint>

namespace nth {

class Process;
struct Heap;

inline constexpr uint64_t HEAP_LARGE = 256 * 1024;

Heap *heap_create(Process *owner);
void heap_destroy(Heap *heap);  // the memory goes with the process, or is released here
void *heap_allocate(Heap *heap, uint64_t size, bool zero, uint64_t align = 16);
bool heap_free(Heap *heap, void *p);
void *heap_reallocate(Heap *heap, void *p, uint64_t size, bool zero);
uint64_t heap_size(Heap *heap, void *p);  // ~0: not a block

// Of the current process.
void *user_malloc(uint64_t size);
void user_free(void *p);

}  // namespace nth
