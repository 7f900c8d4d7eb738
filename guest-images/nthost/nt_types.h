// SPDX-License-Identifier: GPL-2.0-or-later
//
// nt_types.h: the NT data types that cross the PE boundary, with the x64 Windows layout, usable from an LP64
// translation unit. Names and layouts are those of the public driver headers; nt_layout.inc lists the offsets,
// nt_types.h is checked against it here at compile time and the real headers are checked against the same list by the
// test driver's build.
#pragma once

#include "nt_basic.h"
#include "nt_exception.h"
#include "nt_io.h"

namespace nt {

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
