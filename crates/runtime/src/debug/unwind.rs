//! From a [`Snapshot`] to a backtrace: call-frame information by `framehop`, names and lines by
//! `backtrace`.
//!
//! Works without frame pointers: it uses `.eh_frame`, which every Rust program carries for panics.
//! Runs on ordinary OS threads only: it allocates and reads files.
//!
//! # Limits
//! * Names need symbols, lines need debug information (`debug = "line-tables-only"` will do).
//! * Frames of code without call-frame information (hand-written assembly, just-in-time compilers)
//!   end the backtrace.
//! * The copy of a stack ends after 32 KiB: the oldest frames of a deeper one are missing.

use crate::verbs::snapshot::Snapshot;
use core::fmt;
use core::mem::offset_of;
use core::ops::Range;
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use tailwater_shm::grant::PREEMPT_SIGNAL;

/// Maximum number of frames of a backtrace.
const MAX_FRAMES: usize = 128;

/// One function on a stack; inlined functions have frames of their own.
///
/// # Examples
/// ```standalone_crate
/// #[tailwater::main]
/// fn main() {
///     let dump = tailwater::dump();
///     let frames = dump.threads[0].backtrace.iter();
///     let names: Vec<_> = frames.filter_map(|f| f.function.as_deref()).collect();
///     assert!(names.iter().any(|name| name.ends_with("dump")), "{names:?}");
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StackFrame {
    /// Address at which it continues.
    pub address: usize,
    /// Name of the function, if there are symbols.
    pub function: Option<String>,
    /// File and line, if there is debug information.
    pub location: Option<(String, u32)>,
}

/// Writes `function`, and `at file:line` on a line of its own.
impl fmt::Display for StackFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.function {
            Some(name) => f.write_str(name)?,
            None => write!(f, "{:#x}", self.address)?,
        }
        match &self.location {
            Some((file, line)) => write!(f, "\n             at {file}:{line}"),
            None => Ok(()),
        }
    }
}

/// Unwinds stacks and finds names, with the libraries that were loaded when it was made.
pub struct Unwinder {
    objects: UnwinderX86_64<Vec<u8>>,
    cache: CacheX86_64,
    /// Return address of signal handlers: it identifies a signal frame.
    restorer: u64,
    names: HashMap<usize, Arc<[StackFrame]>>,
}

impl Unwinder {
    /// Reads the call-frame information of all loaded objects.
    pub fn new() -> Self {
        let mut objects = UnwinderX86_64::new();
        // SAFETY: the callback gets what it expects; dl_iterate_phdr holds the loader's lock, so
        // nothing is unloaded meanwhile.
        unsafe { libc::dl_iterate_phdr(Some(add_module), (&raw mut objects).cast()) };
        Self { objects, cache: CacheX86_64::new(), restorer: restorer(), names: HashMap::new() }
    }

    /// Returns the frames of a snapshot, youngest first.
    pub fn backtrace(&mut self, snapshot: &Snapshot) -> Vec<StackFrame> {
        self.addresses(snapshot).into_iter().flat_map(|address| self.name(address).to_vec()).collect()
    }

    /// Returns an address in each function on the stack, youngest first.
    fn addresses(&mut self, snapshot: &Snapshot) -> Vec<usize> {
        let mut read = |address: u64| {
            let offset = address.checked_sub(snapshot.sp).ok_or(())?;
            snapshot.stack.get((offset / 8) as usize).copied().ok_or(())
        };
        let mut registers = UnwindRegsX86_64::new(snapshot.ip, snapshot.sp, snapshot.bp);
        let mut at = FrameAddress::from_instruction_pointer(snapshot.ip);
        let mut addresses = Vec::new();
        while addresses.len() < MAX_FRAMES {
            let address = match at {
                FrameAddress::InstructionPointer(address) => address as usize,
                // The address of the call, not of the instruction after it, which may belong to
                // another line or function.
                FrameAddress::ReturnAddress(address) => address.get() as usize - 1,
            };
            let caller = self.objects.unwind_frame(at, &mut registers, &mut self.cache, &mut read);
            addresses.push(address);
            at = match caller {
                Ok(Some(address)) if address == self.restorer => {
                    let Some(interrupted) = interrupted(registers.sp(), &mut read) else { break };
                    registers = interrupted;
                    FrameAddress::from_instruction_pointer(registers.ip())
                }
                Ok(Some(address)) => match FrameAddress::from_return_address(address) {
                    Some(at) => at,
                    None => break,
                },
                _ => break,
            };
        }
        addresses
    }

    fn name(&mut self, address: usize) -> Arc<[StackFrame]> {
        let name = || {
            let mut frames = Vec::new();
            backtrace::resolve(address as *mut c_void, |symbol| {
                frames.push(StackFrame {
                    address,
                    function: symbol.name().map(|name| format!("{name:#}")),
                    location: symbol
                        .filename()
                        .map(|file| (file.display().to_string(), symbol.lineno().unwrap_or(0))),
                });
            });
            if frames.is_empty() {
                frames.push(StackFrame { address, function: None, location: None });
            }
            frames.into()
        };
        Arc::clone(self.names.entry(address).or_insert_with(name))
    }
}

/// Returns the function to which the C library has signal handlers return; 0 if the kernel does not
/// report it.
fn restorer() -> u64 {
    /// The kernel's `struct sigaction` (arch/x86/include/uapi/asm/signal.h), not the C library's.
    #[repr(C)]
    struct KernelSigaction {
        handler: u64,
        flags: u64,
        restorer: u64,
        mask: u64,
    }
    let mut action = KernelSigaction { handler: 0, flags: 0, restorer: 0, mask: 0 };
    let none = core::ptr::null::<KernelSigaction>();
    // SAFETY: the kernel fills the struct, whose mask has the size that is passed.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, PREEMPT_SIGNAL, none, &raw mut action, size_of::<u64>()) };
    action.restorer
}

/// Returns the registers that a signal interrupted: after its handler has returned, the stack
/// pointer points to a ucontext (Linux, struct `rt_sigframe`).
fn interrupted(context: u64, read: &mut impl FnMut(u64) -> Result<u64, ()>) -> Option<UnwindRegsX86_64> {
    const REGISTERS: u64 =
        (offset_of!(libc::ucontext_t, uc_mcontext) + offset_of!(libc::mcontext_t, gregs)) as u64;
    let mut register = |number: i32| read(context + REGISTERS + 8 * number as u64).ok();
    Some(UnwindRegsX86_64::new(register(libc::REG_RIP)?, register(libc::REG_RSP)?, register(libc::REG_RBP)?))
}

/// Adds one loaded object: the callback of `dl_iterate_phdr`.
///
/// # Safety
/// `info` describes a loaded object; `data` is an unwinder of this type.
unsafe extern "C" fn add_module(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: by the contract; a loaded object has `dlpi_phnum` program headers.
    let (info, headers, objects) = unsafe {
        let info = &*info;
        let headers = core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        (info, headers, &mut *data.cast::<UnwinderX86_64<Vec<u8>>>())
    };
    let base = info.dlpi_addr;
    let loaded = || headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
    let Some(header) = headers.iter().find(|h| h.p_type == libc::PT_GNU_EH_FRAME) else { return 0 };
    let hdr = header.p_vaddr..header.p_vaddr + header.p_memsz;
    // SAFETY: `.eh_frame_hdr` is a loaded, readable part of the object.
    let eh_frame_hdr = unsafe { bytes(base, &hdr) };
    // Linux Standard Base 10.6.2: version 1, then the encoding of the pointer to .eh_frame. All
    // linkers write 0x1b: a signed 32-bit distance from the field itself.
    if eh_frame_hdr.len() < 8 || eh_frame_hdr[..2] != [1, 0x1b] {
        return 0;
    }
    let distance = i32::from_le_bytes(eh_frame_hdr[4..8].try_into().expect("four bytes"));
    let start = (hdr.start + 4).wrapping_add_signed(distance.into());
    let end_of = |h: &libc::Elf64_Phdr| h.p_vaddr + h.p_memsz;
    // The section's own end is not in memory; it ends with a zero word, and the table in the header
    // leads to each entry.
    let Some(segment) = loaded().find(|h| (h.p_vaddr..end_of(h)).contains(&start)) else { return 0 };
    let eh_frame = start..segment.p_vaddr + segment.p_filesz;
    let (Some(low), Some(high)) = (loaded().map(|h| h.p_vaddr).min(), loaded().map(end_of).max()) else {
        return 0;
    };
    let sections = ExplicitModuleSectionInfo {
        // SAFETY: a part of a loaded, readable segment.
        eh_frame: Some(unsafe { bytes(base, &eh_frame) }),
        eh_frame_svma: Some(eh_frame),
        eh_frame_hdr: Some(eh_frame_hdr),
        eh_frame_hdr_svma: Some(hdr),
        ..Default::default()
    };
    let range = base + low..base + high;
    objects.add_module(Module::new(String::new(), range, base, sections));
    0
}

/// # Safety
/// The range, moved by `base`, is mapped readable.
unsafe fn bytes(base: u64, range: &Range<u64>) -> Vec<u8> {
    // SAFETY: by the caller's contract.
    unsafe {
        core::slice::from_raw_parts((base + range.start) as *const u8, (range.end - range.start) as usize)
            .to_vec()
    }
}
