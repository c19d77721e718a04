//! Where the stubs of all sites continue: saves what a system call preserves, calls the hook, and
//! does what it says.
//!
//! A system call preserves all registers but `rax`, `rcx` and `r11`, the vector registers among
//! them, and compilers count on it. So the hook is called with everything saved. A wake of a word
//! whose bucket has no waiters needs no hook, and no vector register.
//!
//! The entry is left in one of three ways ([`Handling`]): behind the `syscall` with its result; to
//! the `syscall` itself; or behind it after a wait in the kernel from here, during which the thread
//! is counted in its bucket. A thread that is cancelled there is not counted down: its bucket keeps
//! costing wakers a system call.
//!
//! A hook that has blocked signals has the entry open them ([`Ruling::mask`]): handlers run above
//! no frame of Rust then, so that one which cancels its thread can unwind it.
//!
//! # States in which it runs
//! | state | what happens |
//! |---|---|
//! | the hook is not set yet, or this is a child made by `fork` or `clone` without the memory of its parent | all calls go to the kernel: [`ACTIVE`] is on a page that the kernel clears in a child (`MADV_WIPEONFORK`) |
//! | a signal handler | as elsewhere: the entry uses the stack and nothing else, and the hook may be entered again while it runs |

use crate::sites::{FUTEX, SYSCALL};
use crate::table::{BUCKET_BITS, BUCKET_SHIFT, Bucket, HASH, TABLE, bucket, bucket_of};
use core::arch::{asm, naked_asm};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::io;

/// A futex call: futex(2).
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// Address of the futex word.
    pub address: usize,
    /// The operation with its flags.
    pub operation: u32,
    /// `val`.
    pub value: u32,
    /// `timeout`, or `val2`.
    pub timeout: usize,
    /// `uaddr2`.
    pub address2: usize,
    /// `val3`.
    pub value3: u32,
    /// Stack pointer of the caller.
    pub stack: usize,
}

impl Call {
    /// Makes the call in the kernel, on the calling thread.
    ///
    /// # Safety
    /// The words that it names are valid for what futex(2) does with them, as the caller of the
    /// library's function vouches.
    pub unsafe fn make(&self) -> isize {
        let result;
        // SAFETY: by the caller's contract; the kernel changes no memory but the words.
        unsafe {
            asm!("syscall", inout("rax") FUTEX as isize => result, in("rdi") self.address,
                in("rsi") u64::from(self.operation), in("rdx") u64::from(self.value), in("r10") self.timeout, in("r8") self.address2, in("r9") u64::from(self.value3),
                out("rcx") _, out("r11") _, options(nostack));
        }
        result
    }
}

/// How a [`Call`] is handled.
#[derive(Debug, Clone, Copy)]
pub enum Handling {
    /// It is done: the result, or a negated error number.
    Done(isize),
    /// The kernel does it.
    Kernel,
    /// The kernel does it, and the thread is counted in the word's bucket meanwhile: a wait for a
    /// word that the hook may wake.
    Counted,
}

/// What a [`Hook`] returns.
#[derive(Debug, Clone, Copy)]
pub struct Ruling {
    /// How the call is handled.
    pub handling: Handling,
    /// A signal mask of the kernel's form that the calling OS thread gets before that.
    pub mask: Option<&'static AtomicU64>,
}

impl From<Handling> for Ruling {
    fn from(handling: Handling) -> Self {
        Self { handling, mask: None }
    }
}

/// Decides about calls.
pub type Hook = fn(&Call) -> Ruling;

/// Points to 1 while the hook is called, on a page of its own.
static ACTIVE: AtomicPtr<AtomicU8> = AtomicPtr::new(core::ptr::null_mut());
/// Bytes of a page on x86-64.
pub(super) const PAGE: usize = 4096;
/// The hook.
static HOOK: AtomicUsize = AtomicUsize::new(0);
/// Bytes for the saved vector registers.
static AREA: AtomicU64 = AtomicU64::new(0);

/// State that is saved: SSE, AVX, and the three parts of AVX-512 (Intel SDM volume 1, 13.1). x87
/// registers are empty across calls, and AMX tiles are no library's.
const SAVED: u32 = 0b1110_0110;
/// Offset of the header of a save area (SDM 13.4.2).
const HEADER: usize = 512;
/// `FUTEX_WAKE` with `FUTEX_PRIVATE_FLAG`.
const PRIVATE_WAKE: i32 = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
/// The result is in the answer.
const DONE: usize = 0;
/// The call is to be made where it was.
const KERNEL: usize = 1;

/// Prepares the entry for calls of `hook`, which [`activate`] begins.
///
/// # Errors
/// If the processor or the kernel lacks what it needs.
pub fn prepare(hook: Hook) -> io::Result<()> {
    let area = save_area().ok_or_else(|| io::Error::other("the processor has no XSAVEC instruction"))?;
    AREA.store(area, Relaxed);
    // SAFETY: a new mapping, and advice about it.
    let page = unsafe {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let page = mmap_anonymous(
            core::ptr::null_mut(),
            PAGE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )?;
        madvise(page, PAGE, Advice::LinuxWipeOnFork)?;
        page
    };
    HOOK.store(hook as usize, Relaxed);
    ACTIVE.store(page.cast(), Relaxed);
    Ok(())
}

/// Begins to call the hook.
pub fn activate() {
    // SAFETY: `prepare` has mapped it for good.
    if let Some(active) = unsafe { ACTIVE.load(Relaxed).as_ref() } {
        active.store(1, Relaxed);
    }
}

/// Returns whether the hook is called in this process.
pub fn is_active() -> bool {
    // SAFETY: as above.
    unsafe { ACTIVE.load(Relaxed).as_ref() }.is_some_and(|active| active.load(Relaxed) != 0)
}

/// Returns the bytes that `xsavec` of [`SAVED`] needs, rounded up to a cache line.
fn save_area() -> Option<u64> {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    const OSXSAVE: u32 = 1 << 27;
    const XSAVEC: u32 = 1 << 1;
    if __cpuid(0).eax < 0xd || __cpuid(1).ecx & OSXSAVE == 0 || __cpuid_count(0xd, 1).eax & XSAVEC == 0 {
        return None;
    }
    // Legacy region and header, then each part that the processor has, aligned to a line.
    let parts = (2..32).filter(|part| SAVED & (1 << part) != 0);
    let sizes = parts.map(|part| u64::from(__cpuid_count(0xd, part).eax).next_multiple_of(64));
    Some(512 + 64 + sizes.sum::<u64>())
}

/// What the entry gets from [`decide`].
#[repr(C)]
struct Answer {
    value: isize,
    /// [`DONE`], [`KERNEL`], or the address of the count of the threads that wait in the kernel.
    way: usize,
    /// The address of the mask to set first, or 0.
    mask: usize,
}

/// Calls the hook.
///
/// # Safety
/// `arguments` are the six of a system call; `stack` is the caller's stack pointer; `answer` is
/// valid for writing.
unsafe extern "sysv64" fn decide(
    arguments: *const [u64; 6],
    in_place: u64,
    stack: usize,
    answer: *mut Answer,
) {
    // SAFETY: by the caller's contract.
    let [address, operation, value, timeout, address2, value3] = unsafe { *arguments };
    let call = Call {
        address: address as usize,
        operation: operation as u32,
        value: value as u32,
        timeout: timeout as usize,
        address2: address2 as usize,
        value3: value3 as u32,
        stack,
    };
    // SAFETY: `prepare` has stored a `Hook` before the first jump to a stub was written.
    let hook = unsafe { core::mem::transmute::<usize, Hook>(HOOK.load(Relaxed)) };
    let waits_in: &'static Bucket = bucket(bucket_of(call.address));
    let Ruling { handling, mask } = hook(&call);
    let (value, way) = match handling {
        Handling::Done(value) => (value, DONE),
        Handling::Kernel => (0, KERNEL),
        Handling::Counted if in_place != 0 => {
            waits_in.pin();
            (0, KERNEL)
        }
        Handling::Counted => {
            waits_in.add_kernel();
            (0, core::ptr::from_ref(&waits_in.kernel) as usize)
        }
    };
    let mask = mask.map_or(0, |mask| core::ptr::from_ref(mask) as usize);
    // SAFETY: by the caller's contract.
    unsafe { answer.write(Answer { value, way, mask }) };
}

/// The frame at the beginning of the entry: as if the `syscall` had called it, 128 bytes below its
/// stack pointer.
macro_rules! as_if_called {
    () => {
        ".cfi_def_cfa rsp, 136; .cfi_offset rip, -136"
    };
}

/// Leaves the entry: for the address behind the `syscall`, which is on top of the stack, after an
/// instruction that may change it in `rcx`.
macro_rules! leave {
    ($change:literal) => {
        concat!(
            "pop rcx; .cfi_def_cfa rsp, 128; .cfi_register rip, rcx; lea rsp, [rsp + 128]; ",
            $change,
            "; jmp rcx"
        )
    };
}

/// Where the stubs of sites continue, all but those of [`entry_in_place`].
///
/// # Safety
/// Reached by the jump of a stub, with the arguments of a futex call in their registers, and the
/// address behind its `syscall` on the stack, below a red zone.
#[unsafe(naked)]
pub unsafe extern "C" fn entry() {
    naked_asm!(
        ".cfi_startproc",
        as_if_called!(),
        "cmp esi, {private_wake}",
        "jne 2f",
        "mov r11, [rip + {active}]",
        "cmp byte ptr [r11], 0",
        "je 3f",
        // The bucket, as `bucket_of` has it.
        "mov rcx, rdi",
        "shr rcx, 2",
        "imul rcx, [rip + {hash}]",
        "shr rcx, {hash_shift}",
        "shl rcx, {bucket_shift}",
        "lea r11, [rip + {table}]",
        // The full fence of a waker.
        "lock or dword ptr [rsp - 8], 0",
        "cmp qword ptr [r11 + rcx], 0",
        "jne 2f",
        "xor eax, eax",
        leave!(""),
        "2:",
        as_if_called!(),
        "xor r11d, r11d",
        "jmp {common}",
        // To the `syscall`.
        "3:",
        leave!("sub rcx, {syscall}"),
        ".cfi_endproc",
        private_wake = const PRIVATE_WAKE,
        active = sym ACTIVE,
        hash = sym HASH,
        hash_shift = const u64::BITS - BUCKET_BITS,
        bucket_shift = const BUCKET_SHIFT,
        table = sym TABLE,
        common = sym common,
        syscall = const SYSCALL,
    )
}

/// As [`entry`], for sites whose waits in the kernel have to be made at the `syscall` itself.
///
/// # Safety
/// As [`entry`].
#[unsafe(naked)]
pub unsafe extern "C" fn entry_in_place() {
    naked_asm!(
        ".cfi_startproc",
        as_if_called!(),
        "mov r11d, 1",
        "jmp {common}",
        ".cfi_endproc",
        common = sym common,
    )
}

/// Saves all, calls [`decide`], and leaves. `r11` says whether waits have to be made in place.
///
/// # Safety
/// As [`entry`].
#[unsafe(naked)]
unsafe extern "C" fn common() {
    naked_asm!(
        ".cfi_startproc",
        as_if_called!(),
        "push rbp",
        ".cfi_def_cfa rsp, 144",
        ".cfi_offset rbp, -144",
        "mov rbp, rsp",
        ".cfi_def_cfa rbp, 144",
        "mov rcx, [rip + {active}]",
        "cmp byte ptr [rcx], 0",
        "je 4f",
        // The arguments, the last one first: an array of six from rbp - 48 on.
        "push r9; push r8; push r10; push rdx; push rsi; push rdi",
        // The answer: three words from rbp - 72 on.
        "sub rsp, 24",
        "sub rsp, [rip + {area}]",
        "and rsp, -64",
        "xor eax, eax",
        // The part of the header that xsavec does not write, and that xrstor wants to be zero.
        "mov [rsp + {header} + 16], rax; mov [rsp + {header} + 24], rax",
        "mov [rsp + {header} + 32], rax; mov [rsp + {header} + 40], rax",
        "mov [rsp + {header} + 48], rax; mov [rsp + {header} + 56], rax",
        "mov eax, {saved}",
        "xor edx, edx",
        "xsavec [rsp]",
        "lea rdi, [rbp - 48]",
        "mov rsi, r11",
        "lea rdx, [rbp + 144]",
        "lea rcx, [rbp - 72]",
        "call {decide}",
        "mov eax, {saved}",
        "xor edx, edx",
        "xrstor [rsp]",
        "mov rsi, [rbp - 56]",
        "test rsi, rsi",
        "jz 5f",
        // rt_sigprocmask(SIG_SETMASK, mask, null, 8), with the answer above the stack pointer.
        "lea rsp, [rbp - 72]",
        "mov edi, {set_mask}",
        "xor edx, edx",
        "mov r10d, 8",
        "mov eax, {sigprocmask}",
        "syscall",
        "5:",
        "lea rsp, [rbp - 48]",
        "pop rdi; pop rsi; pop rdx; pop r10; pop r8; pop r9",
        // Below the stack pointer now, in the 128 bytes that a signal's frame leaves alone.
        "mov rax, [rbp - 72]",
        "mov rcx, [rbp - 64]",
        "cmp rcx, {kernel}",
        "jb 2f",
        "je 4f",
        // Counted: the address of the count stays on the stack over the system call.
        "push rcx",
        "mov eax, {futex}",
        "syscall",
        "pop rcx",
        "lock dec dword ptr [rcx]",
        "2:",
        "pop rbp",
        ".cfi_def_cfa rsp, 136",
        ".cfi_restore rbp",
        leave!(""),
        // In place.
        "4:",
        ".cfi_def_cfa rbp, 144",
        ".cfi_offset rbp, -144",
        ".cfi_offset rip, -136",
        "mov eax, {futex}",
        "pop rbp",
        ".cfi_def_cfa rsp, 136",
        ".cfi_restore rbp",
        leave!("sub rcx, {syscall}"),
        ".cfi_endproc",
        active = sym ACTIVE,
        area = sym AREA,
        header = const HEADER,
        saved = const SAVED,
        decide = sym decide,
        kernel = const KERNEL,
        futex = const FUTEX,
        syscall = const SYSCALL,
        set_mask = const libc::SIG_SETMASK,
        sigprocmask = const libc::SYS_rt_sigprocmask,
    )
}
