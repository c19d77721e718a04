//! Poll points for the back-edges of loops: a call that keeps all general registers.
//!
//! A poll point that calls a function by the platform's convention costs a loop more than its own
//! instructions: what the loop keeps in registers moves to others, which the function has to save
//! first, or to memory. On a JSON parser that was most of the cost of its poll points. [`poll`] is
//! one instruction to the compiler, which changes the vector registers and the flags only; loops
//! that count keep integers.
//!
//! # As by a signal
//! The call claims to touch no memory. To the thread that makes it this is true, as it is for the
//! preempt signal: other threads run meanwhile, with stacks and thread-local storage of their own,
//! and what they share with this one is atomic or behind a lock.
//!
//! # Is there a kthread?
//! [`edge`] reads GS base, which is 0 on ordinary threads (`arch::set_gs`), where the kernel lets
//! user mode read it. Elsewhere it saves the registers and asks in Rust.

use super::arch::{BY_INSTRUCTION, FS_WRITES};
use super::guard::GRANT;
use core::arch::{asm, naked_asm};
use tailwater_shm::grant::{GRANT_KIND_BYTE, POLL_BITS};

/// What a poll point does that has, or may have, something to do.
pub trait Slow {
    /// Polls. Does not unwind: a panic ends the process.
    extern "sysv64" fn poll();
}

/// A poll point; [`Slow::poll`] is its slow path, which may be called for nothing.
#[inline(always)]
pub fn poll<S: Slow>() {
    // SAFETY: `edge` keeps the stack and all registers but those named here, by the convention of
    // the function it calls; that function's effects on memory are those of a preempt signal.
    unsafe {
        asm!(
            "call {edge}", edge = sym edge::<S>,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
            out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
            out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _,
            out("zmm28") _, out("zmm29") _, out("zmm30") _, out("zmm31") _,
            out("k0") _, out("k1") _, out("k2") _, out("k3") _,
            out("k4") _, out("k5") _, out("k6") _, out("k7") _,
            options(nomem)
        );
    }
}

/// Calls [`Slow::poll`] if there is something to do, and keeps all general registers.
///
/// # Safety
/// The caller counts on no vector register, opmask or flag. Its stack may have any alignment.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn edge<S: Slow>() {
    naked_asm!(
        "cmp byte ptr [rip + {fs_writes}], {by_instruction}",
        "jne {slowly}",
        "push rax",
        "rdgsbase rax",
        "test rax, rax",
        "jz 2f",
        // As `guard::poll_requested`.
        "mov rax, [rax + {grant}]",
        "test byte ptr [rax + {kind}], {bits}",
        "jnz 3f",
        "2:",
        "pop rax",
        "ret",
        "3:",
        "pop rax",
        "jmp {slowly}",
        fs_writes = sym FS_WRITES,
        by_instruction = const BY_INSTRUCTION,
        grant = const GRANT,
        kind = const GRANT_KIND_BYTE,
        bits = const POLL_BITS,
        slowly = sym slowly::<S>,
    )
}

/// Calls [`Slow::poll`] and keeps all general registers, whatever the alignment of the stack: C
/// calls it from functions that call nothing else. The directives are for backtraces of threads
/// that gave way here.
///
/// # Safety
/// As [`edge`].
#[unsafe(naked)]
unsafe extern "sysv64" fn slowly<S: Slow>() {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "push rax",
        "push rcx",
        "push rdx",
        "push rsi",
        "push rdi",
        "push r8",
        "push r9",
        "push r10",
        "push r11",
        "and rsp, -16",
        "call {slow}",
        "lea rsp, [rbp - 72]",
        "pop r11",
        "pop r10",
        "pop r9",
        "pop r8",
        "pop rdi",
        "pop rsi",
        "pop rdx",
        "pop rcx",
        "pop rax",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
        slow = sym S::poll,
    )
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::cell::Cell;

    thread_local! {
        static POLLS: Cell<u32> = const { Cell::new(0) };
    }

    struct Clobbers;

    impl Slow for Clobbers {
        extern "sysv64" fn poll() {
            POLLS.set(POLLS.get() + 1);
            // SAFETY: the convention gives these registers to the callee.
            unsafe {
                asm!(
                    "mov rax, -1",
                    "mov rcx, rax",
                    "mov rdx, rax",
                    "mov rsi, rax",
                    "mov rdi, rax",
                    "mov r8, rax",
                    "mov r9, rax",
                    "mov r10, rax",
                    "mov r11, rax",
                    clobber_abi("sysv64"),
                    options(nomem, nostack)
                );
            }
        }
    }

    #[test]
    fn the_slow_path_keeps_all_general_registers() {
        let mut registers = [1u64, 2, 3, 4, 5, 6, 7, 8, 9];
        let [rax, rcx, rdx, rsi, rdi, r8, r9, r10, r11] = &mut registers;
        // SAFETY: as in `poll`; what is called changes no vector register.
        unsafe {
            asm!(
                "call {slowly}", slowly = sym slowly::<Clobbers>,
                inout("rax") *rax, inout("rcx") *rcx, inout("rdx") *rdx, inout("rsi") *rsi,
                inout("rdi") *rdi, inout("r8") *r8, inout("r9") *r9, inout("r10") *r10,
                inout("r11") *r11,
            );
        }
        assert_eq!((registers, POLLS.get()), ([1, 2, 3, 4, 5, 6, 7, 8, 9], 1));
    }

    #[test]
    fn a_loop_goes_on_after_an_edge() {
        let mut sums = (0u64, 0f64);
        for i in 0..100u32 {
            sums = (sums.0 + u64::from(i), sums.1 + f64::from(i));
            poll::<Clobbers>();
        }
        assert_eq!(sums, (4_950, 4_950.0));
    }
}
