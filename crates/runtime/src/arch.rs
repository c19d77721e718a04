//! The instructions Rust has no words for: stack switch, FS base, GS-relative access to the kthread.
//!
//! Owns every line of assembly of the runtime. Knows nothing of scheduling.
//!
//! * **GS base** points to the [`Kthread`](crate::kthread::Kthread) of the OS thread. It is read by assembly that the compiler
//!   must repeat after every switch; ordinary thread-locals would not do, since LLVM may keep their address over a switch
//!   that moved the user thread to another OS thread (rust-lang/unsafe-code-guidelines#602).
//! * **FS base** points to the thread control block of the running *user thread*, so `thread_local!` belongs to it. It is
//!   written at each switch: 13 ns with `wrfsbase`, 170 ns by system call where the processor or kernel lacks it. Programs that
//!   let user threads share their kthread's block ([`Builder::shared_tls`](crate::Builder::shared_tls)) never write it.
//! * A switch saves the callee-saved registers of the System V ABI (3.2.1) except the floating-point control words, which
//!   all user threads share: programs that change the rounding mode must change it back before they block.

use core::arch::{asm, naked_asm};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// `HWCAP2_FSGSBASE`: the kernel lets user mode write FS base (Linux 5.9, arch/x86/include/uapi/asm/hwcap2.h).
const HWCAP2_FSGSBASE: u64 = 1 << 1;

/// How FS base is written.
static FS_WRITES: AtomicU8 = AtomicU8::new(BY_SYSCALL);
const BY_SYSCALL: u8 = 0;
const BY_INSTRUCTION: u8 = 1;
/// User threads have no block of their own (`Builder::shared_tls`).
const NEVER: u8 = 2;

/// Finds out what the machine can do. Call before the first user thread exists.
pub fn probe(shared_tls: bool) {
    // SAFETY: getauxval reads the auxiliary vector and has no precondition.
    let bits = unsafe { libc::getauxval(libc::AT_HWCAP2) };
    let how = match (shared_tls, bits & HWCAP2_FSGSBASE != 0) {
        (true, _) => NEVER,
        (false, true) => BY_INSTRUCTION,
        (false, false) => BY_SYSCALL,
    };
    FS_WRITES.store(how, Relaxed);
}

/// Whether all user threads of a kthread use that kthread's thread-local storage.
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
/// 2. `base` stays valid for as long as `gs_*` are used on this thread.
pub unsafe fn set_gs(base: usize) {
    // SAFETY: arch_prctl changes this thread's GS base only, which is ours by point 1.
    let r = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, base) };
    assert_eq!(r, 0, "arch_prctl(ARCH_SET_GS) failed: {}", std::io::Error::last_os_error());
}

/// FS base of this OS thread: its thread control block. The block's first word points to itself (x86-64 psABI, TLS variant II).
#[inline(always)]
pub fn fs_base() -> usize {
    let base;
    // SAFETY: every thread's FS base points to a control block whose first word is its own address.
    unsafe { asm!("mov {}, fs:[0]", out(reg) base, options(nostack, preserves_flags, readonly)) };
    base
}

/// Points FS base of this OS thread at the control block `base`.
///
/// # Safety
/// 1. `base` is a thread control block initialised for this process.
/// 2. Preemption is off, and the caller accounts for every use of thread-locals under the new base.
#[inline(always)]
pub unsafe fn set_fs_base(base: usize) {
    if FS_WRITES.load(Relaxed) == BY_INSTRUCTION {
        // SAFETY: the instruction exists (probe); the value is good by point 1. Not `nomem`: thread-locals change place.
        unsafe { asm!("wrfsbase {}", in(reg) base, options(nostack, preserves_flags)) };
    } else {
        // SAFETY: as above. Raw: libc's wrapper would write errno through the new base.
        unsafe {
            asm!("syscall", inout("rax") libc::SYS_arch_prctl => _, in("rdi") ARCH_SET_FS, in("rsi") base,
                out("rcx") _, out("r11") _, options(nostack));
        }
    }
}

/// Reads the word at GS offset `OFFSET`: never hoisted over a switch, because it is volatile assembly.
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

/// Adds one to the 32-bit counter at GS offset `OFFSET`, in one instruction: atomic towards signals on this OS thread.
///
/// # Safety
/// As [`gs_word`].
#[inline(always)]
pub unsafe fn gs_increment<const OFFSET: usize>() {
    // SAFETY: by the caller's contract. Not `nomem`: it opens a critical section and must not be reordered with one.
    unsafe { asm!("inc dword ptr gs:[{}]", const OFFSET, options(nostack)) };
}

/// Takes one from the 32-bit counter at GS offset `OFFSET`; true when it reached zero.
///
/// # Safety
/// As [`gs_word`].
#[inline(always)]
pub unsafe fn gs_decrement<const OFFSET: usize>() -> bool {
    let zero: u8;
    // SAFETY: by the caller's contract. Not `nomem`: it closes a critical section.
    unsafe { asm!("dec dword ptr gs:[{}]", "setz {}", const OFFSET, out(reg_byte) zero, options(nostack)) };
    zero != 0
}

/// Whether the byte at `offset` behind the pointer at GS offset `POINTER` has any of the bits `mask`.
///
/// # Safety
/// As [`gs_word`], and the pointer there is valid for reading `offset + 1` bytes.
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

/// Has the processor fetch the line at `address`, which may be anything, to be written.
#[inline(always)]
pub fn prefetch_for_writing(address: *const u8) {
    // SAFETY: a hint: it reads nothing and faults nowhere. Processors without the instruction take it for a longer `nop`.
    unsafe { asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) };
}

/// Leaves the running stack and continues on another.
///
/// Saves callee-saved registers and the stack pointer to `*save`, then stores 0 to `*released` (telling other kthreads that the
/// context left behind is whole and may be resumed), sets FS base to `fs` and continues where `load` was saved.
/// Returns when somebody switches back.
///
/// # Safety
/// 1. `load` was saved by this function or laid out by [`initial_stack`], and nobody else resumes it.
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

/// The body of a switch: leaves one stack, does what `$fs` says about FS base, enters the other.
macro_rules! switch_stacks {
    ([$($fs:literal),*] $($operand:tt)*) => {
        naked_asm!(
            "push rbp",
            "push rbx",
            "push r12",
            "push r13",
            "push r14",
            "push r15",
            "mov [rdi], rsp",
            // x86 keeps stores in order: who sees the byte cleared sees rsp and the stack as saved.
            "mov byte ptr [rdx], 0",
            "mov rsp, rsi",
            $($fs,)*
            "pop r15",
            "pop r14",
            "pop r13",
            "pop r12",
            "pop rbx",
            "pop rbp",
            "ret",
            $($operand)*
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

/// Where [`switch`] leaves what an unwinder needs, in words from the saved stack pointer: `rbp`, the return address, and the
/// caller's stack.
pub const SAVED_RBP: usize = 5;
/// See [`SAVED_RBP`].
pub const SAVED_RIP: usize = 6;
/// See [`SAVED_RBP`].
pub const SAVED_WORDS: usize = 7;

/// First frame of every user thread: calls `r12(r13)`, which does not return. Marks the end of the stack for unwinders.
#[unsafe(naked)]
unsafe extern "sysv64" fn start() {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_undefined rip",
        "xor ebp, ebp",
        "mov rdi, r13",
        "call r12",
        "ud2",
        ".cfi_endproc",
    )
}

/// Lays out a stack so that [`switch`] to the returned value calls `entry(argument)` on it.
///
/// # Safety
/// `top` is the upper end of writable memory of at least 128 bytes that nothing else uses.
pub unsafe fn initial_stack(
    top: *mut u8,
    entry: extern "sysv64" fn(*mut u8) -> !,
    argument: *mut u8,
) -> usize {
    let top = (top as usize & !15) as *mut usize;
    // In the order `switch` pops: r15 r14 r13 r12 rbx rbp, then the return address. `start` begins with rsp 16-byte
    // aligned, so that the entry function is called as the ABI wants.
    let words = [0, 0, argument as usize, entry as usize, 0, 0, start as *const () as usize, 0];
    // SAFETY: eight words below `top` are ours by contract.
    unsafe {
        let base = top.sub(words.len() + 1);
        core::ptr::copy_nonoverlapping(words.as_ptr(), base, words.len());
        base as usize
    }
}
