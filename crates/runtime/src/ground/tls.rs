//! A thread-local storage block for every user thread.
//!
//! glibc gives each OS thread a block: the static TLS of all modules, and above it the thread
//! control block (TCB) that FS base points to. A user thread that migrates must take its block
//! along, or safe Rust breaks: a `thread_local!` borrowed before a switch would be another thread's
//! after it. So the stack of each user thread carries a block of its own, made by the dynamic
//! linker's own initialiser and reset from a pristine image when the stack is reused.
//!
//! Owns the shape of a block ([`Shape`]), its initialisation and reset, and the list of a user
//! thread's thread-local destructors. Never allocates on a user thread's FS base.
//!
//! # What a block shares with its process, and what not
//! * Stack guard and pointer guard, the "other threads exist" flag and CET features are copied from
//!   the creating thread.
//! * The kernel's rseq area belongs to the OS thread: a block contains "not registered", so that
//!   `sched_getcpu` asks the kernel. Kthreads are not registered either ([`rseq`]).
//! * The thread id that glibc's recursive mutexes record is unique per user thread and above every
//!   possible Linux id.
//! * What glibc links and never looks for in a list of its own is linked to itself: a thread that
//!   forks is taken out of glibc's list of threads in the child, and one that locks a robust mutex
//!   enters it in its robust list. The kernel has the list of the OS thread instead, so a robust
//!   mutex that a user thread holds when its process dies stays locked for other processes.
//! * Modules loaded later with `dlopen` get their thread-locals lazily and keep them for the next
//!   user of the stack.
//! * `pthread_key` values are not destroyed at the end of a user thread. Rust uses none.
//!
//! Symbols used: `_dl_get_tls_static_info`, `_dl_allocate_tls` (ld.so), `__ctype_init`,
//! `_thread_db_*` (libc, made for debuggers), all present since glibc 2.17 or earlier. A missing
//! one is an error at start.

use super::{arch, guard, rseq};
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The C library lacks what user-thread TLS needs.
///
/// # Examples
/// ```
/// let error = tailwater::TlsError::MissingSymbol("_dl_allocate_tls");
/// assert!(error.to_string().contains("glibc 2.31 or newer"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A symbol is missing.
    #[error(
        "the C library has no `{0}`: Tailwater needs glibc 2.31 or newer (Debian 11, Ubuntu 20.04), dynamically linked"
    )]
    MissingSymbol(&'static str),
    /// This crate's thread-locals are not in the static TLS block.
    #[error("the tailwater crate was loaded with dlopen: link it into the program instead")]
    NotStatic,
}

/// First words of glibc's TCB (`tcbhead_t`, part of the ABI between glibc and compilers).
const TCB_DTV: usize = 0x08;
const TCB_SELF: usize = 0x10;
const TCB_MULTIPLE_THREADS: usize = 0x18;
const TCB_STACK_GUARD: usize = 0x28;
const TCB_POINTER_GUARD: usize = 0x30;
const TCB_FEATURES: usize = 0x48;
/// `RSEQ_CPU_ID_REGISTRATION_FAILED` (include/uapi/linux/rseq.h).
const RSEQ_FAILED: u32 = -2i32 as u32;
/// First id for user threads: Linux ids end at 2^22 (`PID_MAX_LIMIT`).
const FIRST_TID: u32 = 1 << 23;

/// `struct robust_list_head` (include/uapi/linux/futex.h). Glibc has a link to its last entry in
/// the word before it (`robust_prev`).
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct RobustList {
    first: usize,
    futex_offset: isize,
    pending: usize,
}

const LINE: usize = 64;
/// Maximum number of lines of a block that are fetched ahead: a processor has few more fetches
/// under way at once.
const PREFETCHED_LINES: usize = 12;

/// What all blocks of this process have in common.
#[derive(Debug)]
pub struct Shape {
    /// Bytes from the lowest static TLS byte to the end of the TCB.
    size: usize,
    align: usize,
    /// Bytes of TCB at and above FS base.
    tcb_size: usize,
    /// Initial static TLS: the bytes that end at FS base.
    image: Box<[u8]>,
    tid_offset: usize,
    /// Links of glibc's list of threads.
    list_offset: usize,
    /// Offset and first words of the robust list; `None` if the kernel does not show it.
    robust_list: Option<(usize, RobustList)>,
    rseq_offset: Option<isize>,
    /// True if glibc has registered its OS threads' areas, with [`rseq::AREA`] bytes.
    registers_rseq: bool,
    allocate: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    /// Initialises the calling thread's classification tables of <ctype.h>.
    initialise_ctype: Option<unsafe extern "C" fn()>,
}

fn symbol(name: &'static CStr) -> Result<*mut c_void, TlsError> {
    // SAFETY: a plain look-up of a NUL-terminated name.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if address.is_null() { Err(TlsError::MissingSymbol(name.to_str().expect("ASCII"))) } else { Ok(address) }
}

/// Returns the calling OS thread's robust list, and its offset in a TCB of `tcb_size` bytes.
fn robust_list(tcb_size: usize) -> Option<(usize, RobustList)> {
    let (mut head, mut size) = (core::ptr::null_mut::<RobustList>(), 0usize);
    // SAFETY: stores a pointer and a size.
    let result = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut size) };
    let offset = (head as usize).wrapping_sub(arch::fs_base());
    let within = size_of::<usize>()..tcb_size.saturating_sub(size_of::<RobustList>());
    if result != 0 || size != size_of::<RobustList>() || !within.contains(&offset) {
        return None;
    }
    // SAFETY: the list is part of the caller's TCB, which the caller alone changes.
    Some((offset, unsafe { *head }))
}

static SHAPE: OnceLock<Result<Shape, TlsError>> = OnceLock::new();
static NEXT_TID: AtomicU32 = AtomicU32::new(FIRST_TID);

/// Returns the shape, determined at the first call, which an ordinary OS thread makes.
///
/// # Errors
/// If the C library lacks what the runtime needs.
pub fn shape() -> Result<&'static Shape, TlsError> {
    SHAPE.get_or_init(Shape::find).as_ref().map_err(Clone::clone)
}

impl Shape {
    fn find() -> Result<Self, TlsError> {
        type Info = unsafe extern "C" fn(*mut usize, *mut usize);
        type Allocate = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
        let info = symbol(c"_dl_get_tls_static_info")?;
        let allocate = symbol(c"_dl_allocate_tls")?;
        let tcb_size = symbol(c"_thread_db_sizeof_pthread")?.cast::<u32>();
        let tid = symbol(c"_thread_db_pthread_tid")?.cast::<[u32; 3]>();
        let list = symbol(c"_thread_db_pthread_list")?.cast::<[u32; 3]>();
        let (mut size, mut align) = (0, 0);
        // SAFETY: glibc declares these symbols with these types: void (size_t *, size_t *); void
        // *(void *); uint32_t; and a field descriptor {bits, elements, offset} of uint32_t.
        let (allocate, tcb_size, tid_offset, list_offset) = unsafe {
            core::mem::transmute::<*mut c_void, Info>(info)(&raw mut size, &raw mut align);
            let allocate = core::mem::transmute::<*mut c_void, Allocate>(allocate);
            (allocate, *tcb_size as usize, (*tid)[2] as usize, (*list)[2] as usize)
        };
        let initialise_ctype = symbol(c"__ctype_init").ok().map(|address| {
            // SAFETY: glibc declares void __ctype_init(void).
            unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(address) }
        });
        let rseq_offset = symbol(c"__rseq_offset").ok().map(|address| {
            // SAFETY: glibc 2.35 and later declare `const ptrdiff_t __rseq_offset`.
            unsafe { *address.cast::<isize>() }
        });
        let registers_rseq = symbol(c"__rseq_size").is_ok_and(|address| {
            // SAFETY: glibc 2.35 and later declare `const unsigned int __rseq_size`: 0 without a
            // registration, else the bytes of it that the kernel fills.
            (1..=rseq::AREA).contains(&unsafe { *address.cast::<u32>() })
        });
        let mut shape = Self {
            size,
            align: align.max(64),
            tcb_size,
            image: Box::default(),
            tid_offset,
            list_offset,
            robust_list: robust_list(tcb_size),
            rseq_offset,
            registers_rseq,
            allocate,
            initialise_ctype,
        };
        shape.take_image()?;
        Ok(shape)
    }

    /// Makes one block, lets glibc initialise it, and keeps its static TLS as the image of all
    /// blocks.
    fn take_image(&mut self) -> Result<(), TlsError> {
        let layout = std::alloc::Layout::from_size_align(self.full_size(), self.align).expect("a few KiB");
        // SAFETY: the layout is not empty; the block is zeroed, of the shape's size and alignment,
        // and never freed, since glibc allocated its DTV (one block per process).
        let tcb = unsafe {
            let block = std::alloc::alloc_zeroed(layout);
            assert!(!block.is_null(), "out of memory");
            let tcb = self.place(block.add(layout.size()));
            self.initialise(tcb);
            tcb
        };
        let inside = guard::inside_flag_address();
        let fs = arch::fs_base();
        let used = self.used_bytes(fs);
        let distance = fs.wrapping_sub(inside);
        if distance > used {
            return Err(TlsError::NotStatic);
        }
        // SAFETY: the `used` bytes below the TCB are the block's static TLS; the flag lies among
        // them.
        unsafe {
            (tcb as *mut u8).sub(distance).write(1);
            self.image = core::slice::from_raw_parts((tcb as *const u8).sub(used), used).into();
        }
        Ok(())
    }

    /// Returns the bytes of static TLS in use: the farthest distance of a loaded module's block
    /// below FS base.
    fn used_bytes(&self, fs: usize) -> usize {
        struct Search {
            fs: usize,
            limit: usize,
            used: usize,
        }
        unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
            // SAFETY: dl_iterate_phdr passes a valid info and our Search.
            let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
            let distance = search.fs.wrapping_sub(info.dlpi_tls_data as usize);
            if !info.dlpi_tls_data.is_null() && distance <= search.limit {
                search.used = search.used.max(distance);
            }
            0
        }
        let mut search = Search { fs, limit: self.size, used: 0 };
        // SAFETY: the callback matches its data.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
        search.used
    }

    /// Returns the offset from an OS thread's FS base to its rseq area, if glibc has registered it
    /// with [`rseq::AREA`] bytes.
    pub fn registered_rseq(&self) -> Option<isize> {
        self.rseq_offset.filter(|_| self.registers_rseq)
    }

    /// Returns the bytes to reserve for a block, alignment included; 0 if user threads have no
    /// block of their own.
    pub fn block_size(&self) -> usize {
        if arch::shares_tls() { 0 } else { self.full_size() }
    }

    fn full_size(&self) -> usize {
        self.size.max(self.tcb_size) + self.align
    }

    /// Returns the address of the TCB in a block that ends at `end`.
    fn place(&self, end: *mut u8) -> usize {
        (end as usize - self.tcb_size) & !(self.align - 1)
    }

    /// Lets glibc initialise the zeroed block of `tcb`, then adapts it to a user thread.
    ///
    /// # Safety
    /// 1. `tcb` came from [`place`](Self::place) on a zeroed block of
    ///    [`full_size`](Self::full_size) bytes.
    /// 2. Runs on an OS thread's own FS base with preemption off (glibc allocates).
    unsafe fn initialise(&self, tcb: usize) {
        // SAFETY: glibc needs room for the static TLS below and a TCB at the pointer, by point 1.
        // The words written are those of tcbhead_t, copied from the running thread; FS base is put
        // back before anything else runs.
        unsafe {
            let result = (self.allocate)(tcb as *mut c_void);
            assert!(!result.is_null(), "out of memory for thread-local storage");
            let own = arch::fs_base();
            let word = |base: usize, offset: usize| (base + offset) as *mut usize;
            *word(tcb, 0) = tcb;
            *word(tcb, TCB_SELF) = tcb;
            for offset in [TCB_STACK_GUARD, TCB_POINTER_GUARD] {
                *word(tcb, offset) = *word(own, offset);
            }
            for offset in [TCB_MULTIPLE_THREADS, TCB_FEATURES] {
                *((tcb + offset) as *mut u32) = *((own + offset) as *const u32);
            }
            debug_assert_ne!(*word(tcb, TCB_DTV), 0);
            *((tcb + self.tid_offset) as *mut u32) = NEXT_TID.fetch_add(1, Relaxed);
            let links = tcb + self.list_offset;
            *word(links, 0) = links;
            *word(links, size_of::<usize>()) = links;
            if let Some((offset, of_caller)) = self.robust_list {
                let head = tcb + offset;
                *word(head - size_of::<usize>(), 0) = head;
                *(head as *mut RobustList) = RobustList { first: head, pending: 0, ..of_caller };
            }
            if let Some(offset) = self.rseq_offset {
                *((tcb as isize + offset + 4) as *mut u32) = RSEQ_FAILED;
            }
            // The classification tables are thread-locals that each thread initialises for itself.
            if let Some(init) = self.initialise_ctype {
                arch::set_fs_base(tcb);
                init();
                arch::set_fs_base(own);
            }
        }
    }

    /// Makes the block that ends at `end`; returns its FS base, or 0 if user threads have no block
    /// of their own.
    ///
    /// # Safety
    /// 1. [`block_size`](Self::block_size) zeroed bytes below `end` are the caller's permanently.
    /// 2. Runs on an OS thread's own FS base with preemption off.
    pub unsafe fn make(&self, end: *mut u8) -> usize {
        if arch::shares_tls() {
            return 0;
        }
        let tcb = self.place(end);
        // SAFETY: by the caller's contract; `place` keeps the TCB inside the block.
        unsafe {
            self.initialise(tcb);
            self.reset(tcb);
        }
        tcb
    }

    /// Makes the processor fetch the lines that [`reset`](Self::reset) writes in the block that
    /// begins at `low`, and the first of the TCB. Reads nothing: `low` may be any address.
    #[inline]
    pub fn prefetch(&self, low: *const u8) {
        if arch::shares_tls() {
            return;
        }
        let tcb = self.place(low.wrapping_add(self.block_size()).cast_mut());
        let image = low.with_addr(tcb).wrapping_sub(self.image.len());
        for offset in (0..=self.image.len()).step_by(LINE).take(PREFETCHED_LINES) {
            arch::prefetch_for_writing(image.wrapping_add(offset));
        }
    }

    /// Gives the block of `tcb` the initial values that a new thread expects.
    ///
    /// # Safety
    /// `tcb` came from [`make`](Self::make) and no thread runs on it.
    #[inline]
    pub unsafe fn reset(&self, tcb: usize) {
        if arch::shares_tls() {
            return;
        }
        // SAFETY: the image is as long as the static TLS in use below every TCB of this process.
        unsafe {
            core::ptr::copy_nonoverlapping(
                self.image.as_ptr(),
                (tcb as *mut u8).sub(self.image.len()),
                self.image.len(),
            );
        }
    }
}

/// Returns the number by which the C library's mutexes know the calling thread: a user thread's
/// own, or the id of an OS thread. 0 before the shape is known.
#[cfg(feature = "libc-waits")]
pub fn thread_number() -> u32 {
    match SHAPE.get() {
        // SAFETY: FS base points to a TCB of that shape, whose number does not change.
        Some(Ok(shape)) => unsafe { *((arch::fs_base() + shape.tid_offset) as *const u32) },
        _ => 0,
    }
}

/// Returns whether a thread's number is a user thread's.
#[cfg(feature = "libc-waits")]
pub fn is_user_thread(number: u32) -> bool {
    number >= FIRST_TID
}

/// A thread-local destructor, as the C++ ABI has it.
pub type Destructor = unsafe extern "C" fn(*mut c_void);

/// Thread-local destructors that a thread has registered, last first.
#[derive(Debug, Default)]
pub struct Destructors(UnsafeCell<Vec<(Destructor, *mut c_void)>>);

// SAFETY: both methods are for the owning thread alone, by their contracts.
unsafe impl Sync for Destructors {}
// SAFETY: as above; the owner may run on any OS thread.
unsafe impl Send for Destructors {}

impl Destructors {
    /// Returns none.
    pub const fn new() -> Self {
        Self(UnsafeCell::new(Vec::new()))
    }

    /// Registers `destructor` for `object`.
    ///
    /// # Safety
    /// 1. The caller is the thread that owns the list.
    /// 2. `destructor(object)` may be called once, when the thread ends.
    pub unsafe fn push(&self, destructor: Destructor, object: *mut c_void) {
        // SAFETY: only the owner uses the list (point 1), and nothing called here does.
        unsafe { (*self.0.get()).push((destructor, object)) };
    }

    /// Runs and forgets all destructors, including those registered meanwhile.
    ///
    /// # Safety
    /// 1. The caller is the thread that owns the list.
    /// 2. Its closure has returned.
    pub unsafe fn run(&self) {
        // SAFETY: only the owner uses the list (point 1); the borrow ends before the destructor
        // runs.
        while let Some((destructor, object)) = unsafe { (*self.0.get()).pop() } {
            // SAFETY: by point 2 of `push`: the thread ends (point 2), and it has left the list.
            unsafe { destructor(object) };
        }
        // SAFETY: as above; gives the memory back.
        unsafe { *self.0.get() = Vec::new() };
    }
}
