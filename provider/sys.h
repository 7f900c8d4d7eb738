// SPDX-License-Identifier: GPL-2.0-or-later
//
// sys.h: Windows' headers in the order that they need, and the few wrappers that the provider uses. NT 5.2 only: critical
// sections and interlocked operations, no SRW locks, no C++ run time beyond what a freestanding compiler gives.
#pragma once

#include <winsock2.h>
#include <ws2spi.h>
#include <ws2san.h>
#include <windows.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace sanprov {

// Host to network order and back.
inline uint32_t swap32(uint32_t n) { return __builtin_bswap32(n); }
inline uint16_t swap16(uint16_t n) { return __builtin_bswap16(n); }

// An address as the driver and the NIC know it. By way of uintptr_t: a 32-bit pointer must not be extended by its sign.
inline uint64_t address_of(const volatile void *p) { return reinterpret_cast<uintptr_t>(p); }

class CriticalSection {
  public:
    CriticalSection() { InitializeCriticalSection(&cs_); }
    ~CriticalSection() { DeleteCriticalSection(&cs_); }
    CriticalSection(const CriticalSection &) = delete;
    CriticalSection &operator=(const CriticalSection &) = delete;
    void lock() { EnterCriticalSection(&cs_); }
    void unlock() { LeaveCriticalSection(&cs_); }

  private:
    CRITICAL_SECTION cs_;
};

class Guard {
  public:
    explicit Guard(CriticalSection &cs) : cs_(cs) { cs_.lock(); }
    ~Guard() { cs_.unlock(); }
    Guard(const Guard &) = delete;
    Guard &operator=(const Guard &) = delete;

  private:
    CriticalSection &cs_;
};

// Memory of the process heap; nullptr when there is none.
inline void *heap_alloc(size_t bytes) { return HeapAlloc(GetProcessHeap(), HEAP_ZERO_MEMORY, bytes); }
inline void heap_free(void *p) {
    if (p) HeapFree(GetProcessHeap(), 0, p);
}
template <typename T> T *heap_new() {
    void *p = heap_alloc(sizeof(T));
    return p ? new (p) T : nullptr;
}
template <typename T> void heap_delete(T *object) {
    if (!object) return;
    object->~T();
    heap_free(object);
}

// A singly linked queue of nodes with a member `next`.
template <typename T> class Queue {
  public:
    bool empty() const { return head_ == nullptr; }
    T *front() const { return head_; }
    void push(T *node) {
        node->next = nullptr;
        *(head_ ? &tail_->next : &head_) = node;
        tail_ = node;
    }
    T *pop() {
        T *node = head_;
        if (node) head_ = node->next;
        return node;
    }

  private:
    T *head_ = nullptr, *tail_ = nullptr;
};

} // namespace sanprov
