//! The instructions that Rust has no words for: stack switch, FS base, GS-relative access to the
//! kthread.
//!
//! Owns every line of assembly of the runtime. Knows nothing of scheduling.
//!
//! * **GS base** points to the kthread record of the OS thread. Assembly reads it, and the compiler
//!   must repeat that after every switch. Ordinary thread-locals would not do: LLVM may keep their
//!   address over a switch that moves the user thread to another OS thread
//!   (rust-lang/unsafe-code-guidelines#602).
//! * **FS base** points to the thread control block of the running *user thread*, so
//!   `thread_local!` belongs to it. Each switch writes it: 13 ns with `wrfsbase`, 170 ns by system
//!   call where the processor or kernel lacks the instruction. Programs whose user threads share
//!   their kthread's block ([`RuntimeBuilder::shared_tls`](crate::RuntimeBuilder::shared_tls))
//!   never write it.
//! * A switch saves the callee-saved registers of the System V ABI (3.2.1) except the
//!   floating-point control words, which all user threads share: a program that changes the
//!   rounding mode must change it back before it blocks.

use core::arch::{asm, global_asm, naked_asm};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// `HWCAP2_FSGSBASE`: the kernel lets user mode write FS base (Linux 5.9,
/// arch/x86/include/uapi/asm/hwcap2.h).
const HWCAP2_FSGSBASE: u64 = 1 << 1;

/// How FS base is written.
pub(super) static FS_WRITES: AtomicU8 = AtomicU8::new(BY_SYSCALL);
const BY_SYSCALL: u8 = 0;
pub(super) const BY_INSTRUCTION: u8 = 1;
/// User threads have no block of their own (`RuntimeBuilder::shared_tls`).
const NEVER: u8 = 2;

/// Chooses how FS base is written, by what processor and kernel can do.
///
/// # Safety
/// 1. No user thread exists yet.
/// 2. If `shared_tls`, the program keeps the contract of `RuntimeBuilder::shared_tls`.
pub unsafe fn choose_fs_writes(shared_tls: bool) {
    // SAFETY: getauxval reads the auxiliary vector and has no precondition.
    let bits = unsafe { libc::getauxval(libc::AT_HWCAP2) };
    let how = match (shared_tls, bits & HWCAP2_FSGSBASE != 0) {
        (true, _) => NEVER,
        (false, true) => BY_INSTRUCTION,
        (false, false) => BY_SYSCALL,
    };
    FS_WRITES.store(how, Relaxed);
}

/// Returns whether all user threads of a kthread use that kthread's thread-local storage.
#[inline(always)]
pub fn shares_tls() -> bool {
    FS_WRITES.load(Relaxed) == NEVER
}

const ARCH_SET_GS: i64 = 0x1001;
const ARCH_SET_FS: i64 = 0x1002;

/// Points GS base of this OS thread at `base`.
///
/// # Safety
/// 1. Nothing else in the process uses GS (no x86-64 Linux ABI does).
/// 2. `base` stays valid for as long as a `gs_*` function is used on this thread.
pub unsafe fn set_gs(base: usize) {
    // SAFETY: arch_prctl changes this thread's GS base only, which is ours by point 1.
    let r = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, base) };
    assert_eq!(r, 0, "arch_prctl(ARCH_SET_GS) failed: {}", std::io::Error::last_os_error());
}

/// FS base of this OS thread: the address of its thread control block, whose first word points to
/// itself (x86-64 psABI, TLS variant II).
#[inline(always)]
pub fn fs_base() -> usize {
    let base;
    // SAFETY: every thread's FS base points to a control block whose first word is its own address.
    unsafe { asm!("mov {}, fs:[0]", out(reg) base, options(nostack, preserves_flags, readonly)) };
    base
}

// The flag of `guard::inside`: a byte at a fixed distance from FS base, which each section with
// preemption off reads. In a shared library `thread_local!` calls `__tls_get_addr` for each use.
global_asm!(
    ".pushsection .tbss.tailwater_inside, \"awT\", @nobits",
    ".globl tailwater_inside",
    ".hidden tailwater_inside",
    ".type tailwater_inside, @tls_object",
    ".size tailwater_inside, 1",
    "tailwater_inside:",
    ".zero 1",
    ".popsection",
);

/// Returns the flag of the caller's thread-local block.
#[inline(always)]
pub fn inside_flag() -> bool {
    let flag: u64;
    // SAFETY: reads a byte that each thread-local block has.
    unsafe {
        asm!(
            "mov {flag}, qword ptr [rip + tailwater_inside@gottpoff]",
            "movzx {flag:e}, byte ptr fs:[{flag}]",
            flag = out(reg) flag,
            options(nostack, preserves_flags, readonly),
        );
    }
    flag != 0
}

/// Writes the flag of the caller's thread-local block.
///
/// # Safety
/// As [`set_inside`](super::guard::set_inside).
#[inline(always)]
pub unsafe fn set_inside_flag(flag: bool) {
    // SAFETY: writes a byte that each thread-local block has.
    unsafe {
        asm!(
            "mov {offset}, qword ptr [rip + tailwater_inside@gottpoff]",
            "mov byte ptr fs:[{offset}], {flag}",
            offset = out(reg) _,
            flag = in(reg_byte) u8::from(flag),
            options(nostack, preserves_flags),
        );
    }
}

/// Returns the address of the flag in the caller's thread-local block.
pub fn inside_flag_address() -> usize {
    let offset: usize;
    // SAFETY: reads the distance of the flag from FS base.
    unsafe {
        asm!(
            "mov {offset}, qword ptr [rip + tailwater_inside@gottpoff]",
            offset = out(reg) offset,
            options(nostack, preserves_flags, readonly),
        );
    }
    fs_base().wrapping_add(offset)
}

/// Points FS base of this OS thread at the control block `base`.
///
/// # Safety
/// 1. `base` is a thread control block initialised for this process.
/// 2. Preemption is off, and the caller accounts for every use of thread-locals under the new base.
#[inline(always)]
pub unsafe fn set_fs_base(base: usize) {
    if FS_WRITES.load(Relaxed) == BY_INSTRUCTION {
        // SAFETY: the instruction exists (`choose_fs_writes`); the value is good by point 1. Not
        // `nomem`: thread-locals change place.
        unsafe { asm!("wrfsbase {}", in(reg) base, options(nostack, preserves_flags)) };
    } else {
        // SAFETY: as above. Raw: libc's wrapper would write errno through the new base.
        unsafe {
            asm!("syscall", inout("rax") libc::SYS_arch_prctl => _, in("rdi") ARCH_SET_FS, in("rsi") base,
                out("rcx") _, out("r11") _, options(nostack));
        }
    }
}

/// Reads the word at GS offset `OFFSET`. Volatile assembly, so it is never hoisted over a switch.
///
/// # Safety
/// GS base was set on this OS thread, to an object at least `OFFSET + 8` bytes long.
#[inline(always)]
pub unsafe fn gs_word<const OFFSET: usize>() -> usize {
    let word;
    // SAFETY: by the caller's contract.
    unsafe { asm!("mov {}, gs:[{}]", out(reg) word, const OFFSET, options(nostack, preserves_flags)) };
    word
}

/// Reads the 32-bit word at GS offset `OFFSET`.
///
/// # Safety
/// As [`gs_word`].
#[inline(always)]
pub unsafe fn gs_half<const OFFSET: usize>() -> u32 {
    let word: u32;
    // SAFETY: by the caller's contract.
    unsafe {
        asm!("mov {:e}, dword ptr gs:[{}]", out(reg) word, const OFFSET, options(nostack, preserves_flags));
    };
    word
}

/// Adds one to the 32-bit counter at GS offset `OFFSET`, in one instruction: atomic towards signals
/// on this OS thread.
///
/// # Safety
/// As [`gs_word`].
#[inline(always)]
pub unsafe fn gs_increment<const OFFSET: usize>() {
    // SAFETY: by the caller's contract. Not `nomem`: it opens a critical section and must not be
    // reordered with one.
    unsafe { asm!("inc dword ptr gs:[{}]", const OFFSET, options(nostack)) };
}

/// Subtracts one from the 32-bit counter at GS offset `OFFSET`, as a signed number; true if it is
/// zero or less then.
///
/// # Safety
/// As [`gs_word`].
#[inline(always)]
pub unsafe fn gs_decrement<const OFFSET: usize>() -> bool {
    let spent: u8;
    // SAFETY: by the caller's contract. Not `nomem`: it closes a critical section.
    unsafe { asm!("dec dword ptr gs:[{}]", "setle {}", const OFFSET, out(reg_byte) spent, options(nostack)) };
    spent != 0
}

/// Returns whether byte `BYTE` behind the pointer at GS offset `POINTER` has any of the bits
/// `MASK`.
///
/// # Safety
/// As [`gs_word`], and the pointer there is valid for reading `BYTE + 1` bytes.
#[inline(always)]
pub unsafe fn gs_points_to_bits<const POINTER: usize, const BYTE: usize, const MASK: u8>() -> bool {
    let set: u8;
    // SAFETY: by the caller's contract.
    unsafe {
        asm!("mov {p}, gs:[{off}]", "test byte ptr [{p} + {byte}], {mask}", "setnz {set}",
            off = const POINTER, byte = const BYTE, mask = const MASK,
            p = out(reg) _, set = out(reg_byte) set, options(nostack, readonly));
    }
    set != 0
}

/// Makes the processor fetch the line at `address` for writing. The address may be anything.
#[inline(always)]
pub fn prefetch_for_writing(address: *const u8) {
    // SAFETY: a hint that reads nothing and never faults. Processors without the instruction take
    // it for a longer `nop`.
    unsafe { asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) };
}

/// Leaves the running stack and continues on another.
///
/// Saves callee-saved registers on the stack and the stack pointer to `*save`, then stores 0 to
/// `*released`: other kthreads may resume the context from then on. Sets FS base to `fs` and
/// continues where `load` was saved. Returns when another switch loads what was saved here.
///
/// # Safety
/// 1. `load` was saved by this function or laid out by [`initial_stack`], and is not resumed
///    elsewhere.
/// 2. `save` and `released` are valid until this function returns.
/// 3. `fs` is the control block that belongs with `load`.
/// 4. Preemption is off.
#[inline(always)]
pub unsafe fn switch(save: *mut usize, load: usize, released: *mut u8, fs: usize) {
    // SAFETY: the caller's contract is the callee's.
    unsafe {
        match FS_WRITES.load(Relaxed) {
            BY_INSTRUCTION => switch_wrfsbase(save, load, released, fs),
            NEVER => switch_shared_tls(save, load, released),
            _ => switch_syscall(save, load, released, fs),
        }
    }
}

/// The instructions of a switch: `$save`, then those that enter the other stack, with `$fs` among
/// them.
///
/// A new thread is entered by a jump, and [`leave_for_good`] is no call. The return stack of the
/// processor then holds, when a thread has ended, the addresses of the thread that it was started
/// from: calls and returns are in step, and those of the next thread are predicted.
macro_rules! enter_stack {
    ([$($save:literal),*] [$($fs:literal),*] $($operand:tt)*) => {
        naked_asm!(
            $($save,)*
            // x86 keeps stores in order: a kthread that sees the byte cleared sees rsp and the
            // stack as saved.
            "mov byte ptr [rdx], 0",
            "mov rsp, rsi",
            $($fs,)*
            "pop r15",
            "pop r14",
            "pop r13",
            "pop r12",
            "pop rbx",
            "pop rbp",
            "lea rax, [rip + {start}]",
            "cmp rax, [rsp]",
            "je 2f",
            "ret",
            "2:",
            "add rsp, 8",
            "jmp {start}",
            start = sym start,
            $($operand)*
        )
    };
}

/// The body of a switch: leaves one stack, runs the instructions `$fs`, enters the other.
macro_rules! switch_stacks {
    ([$($fs:literal),*] $($operand:tt)*) => {
        enter_stack!(
            [
                "push rbp",
                "push rbx",
                "push r12",
                "push r13",
                "push r14",
                "push r15",
                "mov [rdi], rsp"
            ]
            [$($fs),*] $($operand)*
        )
    };
}

/// [`switch`] by instruction.
///
/// # Safety
/// As [`switch`].
#[unsafe(naked)]
unsafe extern "sysv64" fn switch_wrfsbase(save: *mut usize, load: usize, released: *mut u8, fs: usize) {
    switch_stacks!(["wrfsbase rcx"])
}

/// [`switch`] for machines without `wrfsbase`.
///
/// # Safety
/// As [`switch`].
#[unsafe(naked)]
unsafe extern "sysv64" fn switch_syscall(save: *mut usize, load: usize, released: *mut u8, fs: usize) {
    switch_stacks!(
        ["mov rsi, rcx", "mov edi, {set_fs}", "mov eax, {arch_prctl}", "syscall"]
        set_fs = const ARCH_SET_FS,
        arch_prctl = const libc::SYS_arch_prctl,
    )
}

/// [`switch`] between threads that share FS base.
///
/// # Safety
/// As [`switch`].
#[unsafe(naked)]
unsafe extern "sysv64" fn switch_shared_tls(save: *mut usize, load: usize, released: *mut u8) {
    switch_stacks!([])
}

/// As [`switch`], from a stack that is not entered again: saves nothing and does not return.
///
/// # Safety
/// 1. As [`switch`] for `load`, `fs` and preemption.
/// 2. `released` is valid, and nothing on this stack is used after it was cleared.
#[inline(always)]
pub unsafe fn leave_for_good(load: usize, released: *mut u8, fs: usize) -> ! {
    // SAFETY: the caller's contract is that of the code jumped to, which takes its arguments where
    // `switch` has them.
    unsafe {
        match FS_WRITES.load(Relaxed) {
            BY_INSTRUCTION => asm!(
                "jmp {}", sym leave_wrfsbase,
                in("rsi") load, in("rdx") released, in("rcx") fs,
                options(noreturn)
            ),
            NEVER => asm!(
                "jmp {}", sym leave_shared_tls,
                in("rsi") load, in("rdx") released,
                options(noreturn)
            ),
            _ => asm!(
                "jmp {}", sym leave_syscall,
                in("rsi") load, in("rdx") released, in("rcx") fs,
                options(noreturn)
            ),
        }
    }
}

/// [`leave_for_good`] by instruction.
///
/// # Safety
/// As [`leave_for_good`].
#[unsafe(naked)]
unsafe extern "sysv64" fn leave_wrfsbase() {
    enter_stack!([]["wrfsbase rcx"])
}

/// [`leave_for_good`] for machines without `wrfsbase`.
///
/// # Safety
/// As [`leave_for_good`].
#[unsafe(naked)]
unsafe extern "sysv64" fn leave_syscall() {
    enter_stack!(
        []
        ["mov rsi, rcx", "mov edi, {set_fs}", "mov eax, {arch_prctl}", "syscall"]
        set_fs = const ARCH_SET_FS,
        arch_prctl = const libc::SYS_arch_prctl,
    )
}

/// [`leave_for_good`] between threads that share FS base.
///
/// # Safety
/// As [`leave_for_good`].
#[unsafe(naked)]
unsafe extern "sysv64" fn leave_shared_tls() {
    enter_stack!([] [])
}

/// Where [`switch`] saves `rbp`, in words from the saved stack pointer.
pub const SAVED_RBP: usize = 5;
/// Where the return address of [`switch`] lies, in words from the saved stack pointer.
pub const SAVED_RIP: usize = 6;
/// Where the caller's stack begins, in words from the saved stack pointer.
pub const SAVED_WORDS: usize = 7;

/// First frame of every user thread: continues in `r12(r13)`, which does not return, as if it had
/// called it (see [`enter_stack`]). Unwinders end here.
#[unsafe(naked)]
unsafe extern "sysv64" fn start() {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_undefined rip",
        "xor ebp, ebp",
        "mov rdi, r13",
        "lea rax, [rip + 2f]",
        "push rax",
        ".cfi_adjust_cfa_offset 8",
        "jmp r12",
        "2:",
        "ud2",
        ".cfi_endproc",
    )
}

/// Lays out a stack so that [`switch`] to the returned value calls `entry(argument)` on it.
///
/// # Safety
/// 1. `top` is the upper end of at least 128 bytes of writable memory that nothing else uses.
/// 2. `entry(argument)` may be called, once.
pub unsafe fn initial_stack(
    top: *mut u8,
    entry: unsafe extern "sysv64" fn(*mut u8) -> !,
    argument: *mut u8,
) -> usize {
    let top = (top as usize & !15) as *mut usize;
    // In the order in which `switch` pops: r15 r14 r13 r12 rbx rbp, then the return address.
    // `start` begins with rsp aligned to 16 bytes, so that its call of the entry function follows
    // the ABI.
    let words = [0, 0, argument as usize, entry as usize, 0, 0, start as *const () as usize, 0];
    // SAFETY: eight words below `top` are free by point 1.
    unsafe {
        let base = top.sub(words.len() + 1);
        core::ptr::copy_nonoverlapping(words.as_ptr(), base, words.len());
        base as usize
    }
}
