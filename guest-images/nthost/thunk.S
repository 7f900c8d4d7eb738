/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * thunk.S: the places where PE code and nthost meet.
 *
 * nth_record_stub    every recorded import goes through it: r11 = its ImportSlot. It notes the caller's stack pointer and
 *                    non-volatile registers in the thread's call records, so that an exception that starts in or below
 *                    the import can go on in the caller's PE frame. Records whose rsp is not above ours are dead.
 *                    A thread that is to end goes no further than here.
 * nth_restore        continue with a CONTEXT. Win64 has no red zone, so rip and rdi may be parked below the new rsp.
 * nth_call_on_stack  call fn(arg) on another stack.
 * nth_ms_*           memcpy and friends in the Windows calling convention: leaf functions that keep no state on the
 *                    stack, so that a fault in them is the caller's fault (fault.cc relies on nth_leaf_begin/_end, and
 *                    on r10/r11 holding rdi/rsi between nth_rep_begin and nth_rep_end).
 * nth_safe_copy      copy that answers 1 instead of faulting.
 */
    .intel_syntax noprefix
    .text

#define GS_RECORD_TOP 0x1900
#define GS_LEAF_RETURN 0x1908
#define GS_ATTENTION 0x1910
#define GS_KERNEL_DEPTH 0x1918
#define RECORD_SIZE 256
#define SLOT_TARGET 0

    .globl nth_record_stub
    .p2align 5
nth_record_stub:
    cmp     dword ptr gs:[GS_ATTENTION], 0
    jne     3f
0:  mov     rax, gs:[GS_RECORD_TOP]
1:  cmp     rsp, [rax - RECORD_SIZE]
    jb      2f
    sub     rax, RECORD_SIZE
    jmp     1b
2:  mov     [rax], rsp
    mov     [rax + 8], rbx
    mov     [rax + 16], rbp
    mov     [rax + 24], rsi
    mov     [rax + 32], rdi
    mov     [rax + 40], r12
    mov     [rax + 48], r13
    mov     [rax + 56], r14
    mov     [rax + 64], r15
    mov     [rax + 72], r11
    movaps  [rax + 96], xmm6
    movaps  [rax + 112], xmm7
    movaps  [rax + 128], xmm8
    movaps  [rax + 144], xmm9
    movaps  [rax + 160], xmm10
    movaps  [rax + 176], xmm11
    movaps  [rax + 192], xmm12
    movaps  [rax + 208], xmm13
    movaps  [rax + 224], xmm14
    movaps  [rax + 240], xmm15
    add     rax, RECORD_SIZE
    mov     gs:[GS_RECORD_TOP], rax
    jmp     [r11 + SLOT_TARGET]
3:  cmp     dword ptr gs:[GS_KERNEL_DEPTH], 0   /* not out of the kernel */
    jne     0b
    and     rsp, -16
    call    nth_leave_thread

/* nth_restore(const CONTEXT *rdi): offsets of nt_types.h */
    .globl nth_restore
    .p2align 4
nth_restore:
    ldmxcsr [rdi + 0x34]
    movaps  xmm0, [rdi + 0x1a0]
    movaps  xmm1, [rdi + 0x1b0]
    movaps  xmm2, [rdi + 0x1c0]
    movaps  xmm3, [rdi + 0x1d0]
    movaps  xmm4, [rdi + 0x1e0]
    movaps  xmm5, [rdi + 0x1f0]
    movaps  xmm6, [rdi + 0x200]
    movaps  xmm7, [rdi + 0x210]
    movaps  xmm8, [rdi + 0x220]
    movaps  xmm9, [rdi + 0x230]
    movaps  xmm10, [rdi + 0x240]
    movaps  xmm11, [rdi + 0x250]
    movaps  xmm12, [rdi + 0x260]
    movaps  xmm13, [rdi + 0x270]
    movaps  xmm14, [rdi + 0x280]
    movaps  xmm15, [rdi + 0x290]
    mov     rax, [rdi + 0x98]           /* target rsp */
    mov     rcx, [rdi + 0xf8]           /* rip */
    mov     [rax - 8], rcx
    mov     rcx, [rdi + 0xb0]           /* rdi */
    mov     [rax - 16], rcx
    mov     ecx, [rdi + 0x44]           /* eflags */
    and     ecx, 0xcd5                  /* arithmetic flags and DF only */
    mov     [rax - 24], rcx
    mov     rcx, [rdi + 0x80]
    mov     rdx, [rdi + 0x88]
    mov     rbx, [rdi + 0x90]
    mov     rbp, [rdi + 0xa0]
    mov     rsi, [rdi + 0xa8]
    mov     r8, [rdi + 0xb8]
    mov     r9, [rdi + 0xc0]
    mov     r10, [rdi + 0xc8]
    mov     r11, [rdi + 0xd0]
    mov     r12, [rdi + 0xd8]
    mov     r13, [rdi + 0xe0]
    mov     r14, [rdi + 0xe8]
    mov     r15, [rdi + 0xf0]
    lea     rsp, [rax - 24]
    mov     rax, [rdi + 0x78]
    popfq
    pop     rdi
    ret

/* uint64_t nth_call_on_stack(void *sp, uint64_t (*fn)(void *), void *arg) */
    .globl nth_call_on_stack
    .p2align 4
nth_call_on_stack:
    .cfi_startproc
    .cfi_signal_frame /* debuggers: the caller is on another stack */
    push    rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    mov     rbp, rsp
    .cfi_def_cfa_register rbp
    mov     rsp, rdi
    and     rsp, -16
    mov     rdi, rdx
    call    rsi
    mov     rsp, rbp
    pop     rbp
    .cfi_def_cfa rsp, 8
    ret
    .cfi_endproc

/* int nth_safe_copy(void *rdi, const void *rsi, size_t rdx): a fault between the labels makes it answer 1 */
    .globl nth_safe_copy, nth_safe_copy_begin, nth_safe_copy_end, nth_safe_copy_fault
    .p2align 4
nth_safe_copy:
    mov     rcx, rdx
nth_safe_copy_begin:
    cmp     rcx, 16
    jb      2f
1:  movups  xmm0, [rsi]
    movups  [rdi], xmm0
    add     rsi, 16
    add     rdi, 16
    sub     rcx, 16
    cmp     rcx, 16
    jae     1b
2:  test    rcx, rcx
    jz      4f
3:  mov     al, [rsi]
    mov     [rdi], al
    inc     rsi
    inc     rdi
    dec     rcx
    jnz     3b
4:
nth_safe_copy_end:
    xor     eax, eax
    ret
nth_safe_copy_fault:
    mov     eax, 1
    ret

/* Where a leaf import returns to that was let at user memory: closes it again and goes on to the caller (fault.cc). */
    .globl  nth_close_access
    .p2align 4
nth_close_access:
    mov     r11, rax
    mov     eax, nth_pkru_denied[rip]
    xor     ecx, ecx
    xor     edx, edx
    wrpkru
    mov     rax, r11
    jmp     gs:[GS_LEAF_RETURN]

/* Windows convention: rcx = destination, rdx = source, r8 = count */
    .globl nth_leaf_begin, nth_leaf_end, nth_rep_begin, nth_rep_end
    .globl nth_ms_memmove, nth_ms_memset, nth_ms_memcmp, nth_ms_memzero
    .p2align 5
nth_leaf_begin:
nth_ms_memmove:
    mov     rax, rcx
    cmp     r8, 16
    jb      20f
    mov     r9, rcx
    sub     r9, rdx
    cmp     r9, r8
    jb      30f                         /* destination starts inside the source: backward */
    cmp     r8, nth_rep_min[rip]
    jae     40f
    movups  xmm5, [rdx + r8 - 16]
    lea     r9, [rcx + r8 - 16]         /* where the tail goes */
    lea     r10, [r9 - 48]
    cmp     r8, 80
    jb      11f
10: movups  xmm0, [rdx]
    movups  xmm1, [rdx + 16]
    movups  xmm2, [rdx + 32]
    movups  xmm3, [rdx + 48]
    movups  [rcx], xmm0
    movups  [rcx + 16], xmm1
    movups  [rcx + 32], xmm2
    movups  [rcx + 48], xmm3
    add     rdx, 64
    add     rcx, 64
    cmp     rcx, r10
    jb      10b
11: cmp     rcx, r9
    jae     12f
    movups  xmm0, [rdx]
    movups  [rcx], xmm0
    add     rdx, 16
    add     rcx, 16
    jmp     11b
12: movups  [r9], xmm5
    ret
20: cmp     r8, 8                       /* 0..15 bytes */
    jb      21f
    mov     r9, [rdx]
    mov     r10, [rdx + r8 - 8]
    mov     [rcx], r9
    mov     [rcx + r8 - 8], r10
    ret
21: cmp     r8, 4
    jb      22f
    mov     r9d, [rdx]
    mov     r10d, [rdx + r8 - 4]
    mov     [rcx], r9d
    mov     [rcx + r8 - 4], r10d
    ret
22: test    r8, r8
    jz      23f
    movzx   r9d, byte ptr [rdx]
    movzx   r10d, byte ptr [rdx + r8 - 1]
    cmp     r8, 2
    jbe     24f
    movzx   r11d, byte ptr [rdx + 1]
    mov     [rcx + 1], r11b
24: mov     [rcx], r9b
    mov     [rcx + r8 - 1], r10b
23: ret
30: test    r9, r9                      /* same address */
    jz      33f
    movups  xmm5, [rdx]                 /* head, stored last */
31: cmp     r8, 16
    jbe     32f
    movups  xmm0, [rdx + r8 - 16]
    movups  [rcx + r8 - 16], xmm0
    sub     r8, 16
    jmp     31b
32: movups  [rcx], xmm5
33: ret
40: mov     r10, rdi
    mov     r11, rsi
nth_rep_begin:
    mov     rdi, rcx
    mov     rsi, rdx
    mov     rcx, r8
    rep movsb
nth_rep_end:
    mov     rdi, r10
    mov     rsi, r11
    ret

    .p2align 4
nth_ms_memzero:                         /* RtlZeroMemory(rcx, rdx) */
    mov     r8, rdx
    xor     edx, edx
nth_ms_memset:                          /* memset(rcx, dl, r8) */
    mov     rax, rcx
    movzx   edx, dl
    mov     r9, 0x0101010101010101
    imul    r9, rdx
    cmp     r8, 16
    jb      53f
    movq    xmm0, r9
    punpcklqdq xmm0, xmm0
    lea     r10, [rcx + r8 - 16]
51: cmp     rcx, r10
    jae     52f
    movups  [rcx], xmm0
    add     rcx, 16
    jmp     51b
52: movups  [r10], xmm0
    ret
53: test    r8, r8
    jz      55f
54: mov     [rcx], r9b
    inc     rcx
    dec     r8
    jnz     54b
55: ret

    .p2align 4
nth_ms_memcmp:
    cmp     r8, 8
    jb      62f
61: mov     r9, [rcx]
    mov     r10, [rdx]
    cmp     r9, r10
    jne     65f
    add     rcx, 8
    add     rdx, 8
    sub     r8, 8
    cmp     r8, 8
    jae     61b
62: test    r8, r8
    jz      64f
63: movzx   eax, byte ptr [rcx]
    movzx   r9d, byte ptr [rdx]
    sub     eax, r9d
    jnz     66f
    inc     rcx
    inc     rdx
    dec     r8
    jnz     63b
64: xor     eax, eax
66: ret
65: bswap   r9
    bswap   r10
    xor     eax, eax
    cmp     r9, r10
    seta    al
    sbb     eax, 0
    ret
nth_leaf_end:
    nop

    .section .note.GNU-stack, "", @progbits
