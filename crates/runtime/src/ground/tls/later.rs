//! Thread-locals of libraries that are opened after the runtime has started.
//!
//! glibc gives them their initial values in each thread that it knows of, and user threads are none
//! of these. Owns how a block that was made before gets them when its next thread starts: the
//! static part from an image that is taken again after each such library, the dynamic part by
//! giving back what the thread before had, so that it is made anew. Takes none of the dynamic
//! linker's locks but for an image: a user thread that waits for its turn may hold one.
//!
//! | thread-locals of the library | in a user thread that starts later | in one that ran meanwhile |
//! |---|---|---|
//! | dynamic (the default of libraries) | initial values | initial values |
//! | in the static block (`-ftls-model=initial-exec`) | initial values | zeros |
//!
//! Symbols used: `_rtld_global`, `_dl_deallocate_tls` (ld.so), and `_thread_db_*` of the tables of
//! modules with thread-locals. Where one is missing, blocks are left as they are.
//!
//! | word of glibc's tables | written by | read here |
//! |---|---|---|
//! | `len`, `next` of a list, `gen`, `map` of a slot | the dynamic linker, with its lock | Acquire, without it: lists are never freed; slots are given in order, and a `gen` only grows |

use super::{Shape, TCB_DTV, symbol};
use crate::ground::spin::SpinLock;
use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering::Acquire};
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// An entry of a thread's vector of modules without memory (`TLS_DTV_UNALLOCATED`).
const UNALLOCATED: usize = usize::MAX;

/// An entry of that vector (`dtv_t`): the module's thread-locals, and what to free of them.
#[repr(C)]
struct Entry {
    value: usize,
    to_free: *mut c_void,
}

/// The static thread-locals of a new thread, of one state of the libraries.
#[derive(Debug, Clone, Copy)]
struct Image {
    generation: usize,
    bytes: &'static [u8],
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Later {
    tables: Tables,
    /// The first slot that no library had when the runtime started.
    first: usize,
    /// What [`Tables::generation`] was then.
    generation: usize,
    deallocate: unsafe extern "C" fn(*mut c_void, bool),
    image: SpinLock<Option<Image>>,
}

/// Where glibc's table of modules is, and the offsets of its parts.
#[derive(Debug)]
struct Tables {
    /// The word that has the address of the first list.
    head: usize,
    len: usize,
    next: usize,
    slots: usize,
    slot_size: usize,
    generation: usize,
    map: usize,
}

impl Tables {
    fn find() -> Option<Self> {
        // SAFETY: `_thread_db_*` are field descriptors {bits, elements, offset} and sizes of
        // uint32_t.
        let offset = |name| unsafe { Some((*symbol(name).ok()?.cast::<[u32; 3]>())[2] as usize) };
        // SAFETY: as above.
        let slot_size = unsafe { *symbol(c"_thread_db_sizeof_dtv_slotinfo").ok()?.cast::<u32>() };
        let list = offset(c"_thread_db_rtld_global__dl_tls_dtv_slotinfo_list")?;
        Some(Self {
            head: symbol(c"_rtld_global").ok()? as usize + list,
            len: offset(c"_thread_db_dtv_slotinfo_list_len")?,
            next: offset(c"_thread_db_dtv_slotinfo_list_next")?,
            slots: offset(c"_thread_db_dtv_slotinfo_list_slotinfo")?,
            slot_size: slot_size as usize,
            generation: offset(c"_thread_db_dtv_slotinfo_gen")?,
            map: offset(c"_thread_db_dtv_slotinfo_map")?,
        })
    }

    fn word(address: usize) -> usize {
        // SAFETY: an aligned word of the dynamic linker's tables, which are never freed; it writes
        // them as words.
        unsafe { AtomicUsize::from_ptr(address as *mut usize) }.load(Acquire)
    }

    /// Returns the slots from `first` on as (generation, map), up to the end of the tables.
    fn slots(&self, first: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let (mut list, mut index) = (Self::word(self.head), first);
        core::iter::from_fn(move || {
            while index >= Self::word(list + self.len) {
                (list, index) = (Self::word(list + self.next), 0);
                if list == 0 {
                    return None;
                }
            }
            let slot = list + self.slots + index * self.slot_size;
            index += 1;
            Some((Self::word(slot + self.generation), Self::word(slot + self.map)))
        })
    }

    /// Returns a number that grows with each library opened that has thread-locals and a slot from
    /// `first` on.
    fn generation(&self, first: usize) -> usize {
        let used = self.slots(first).take_while(|&slot| slot != (0, 0));
        used.map(|(generation, _)| generation).max().unwrap_or(0)
    }
}

impl Later {
    /// Returns what tells libraries that are opened from now on; `None` if the C library does not
    /// have it.
    pub(super) fn find() -> Option<Self> {
        type Deallocate = unsafe extern "C" fn(*mut c_void, bool);
        let tables = Tables::find()?;
        // Numbers of modules begin at 1.
        let first = 1 + tables.slots(1).take_while(|&(_, map)| map != 0).count();
        let deallocate = symbol(c"_dl_deallocate_tls").ok()?;
        // SAFETY: glibc declares void (void *, bool).
        let deallocate = unsafe { core::mem::transmute::<*mut c_void, Deallocate>(deallocate) };
        let generation = tables.generation(first);
        Some(Self { tables, first, generation, deallocate, image: SpinLock::new(None) })
    }

    /// Returns the generation if a library with thread-locals was opened since the start.
    #[inline]
    pub(super) fn generation(&self) -> Option<usize> {
        let generation = self.tables.generation(self.first);
        (generation != self.generation).then_some(generation)
    }

    /// Makes the block of `tcb` as a thread that starts now expects it.
    ///
    /// # Safety
    /// 1. `tcb` came from [`Shape::make`], and no thread runs on it.
    /// 2. Runs on an OS thread's own FS base with preemption off (glibc frees, and may allocate).
    pub(super) unsafe fn renew(&self, shape: &Shape, tcb: usize, generation: usize) {
        // SAFETY: by the caller's contract. A thread's vector has its length in the entry before
        // the one to which the TCB points, which has a generation; memory of a module was allocated
        // by `malloc` as the program has it, and its entry is taken for one without any from then
        // on.
        unsafe {
            let vector = *((tcb + TCB_DTV) as *const *mut Entry);
            let len = (*vector.sub(1)).value;
            for number in 1..=len {
                let entry = &mut *vector.add(number);
                if !entry.to_free.is_null() {
                    libc::free(entry.to_free);
                    *entry = Entry { value: UNALLOCATED, to_free: core::ptr::null_mut() };
                }
            }
            let image = self.image(shape, generation);
            core::ptr::copy_nonoverlapping(image.as_ptr(), (tcb as *mut u8).sub(image.len()), image.len());
        }
    }

    /// Returns the static block of a thread that starts now, up to FS base.
    ///
    /// # Safety
    /// Runs on an OS thread's own FS base with preemption off.
    unsafe fn image(&self, shape: &Shape, generation: usize) -> &'static [u8] {
        if let Some(image) = *self.image.lock()
            && image.generation == generation
        {
            return image.bytes;
        }
        // SAFETY: by the caller's contract. Not under the lock: the dynamic linker has locks.
        let bytes = unsafe { self.take_image(shape) };
        let mut image = self.image.lock();
        let bytes = match *image {
            // Threads that run now may copy the former one, so none is freed. The same library may
            // be opened and closed without end.
            Some(former) if *former.bytes == *bytes => former.bytes,
            _ => Box::leak(bytes),
        };
        *image = Some(Image { generation, bytes });
        bytes
    }

    /// Lets glibc make a block, and copies its static part.
    ///
    /// # Safety
    /// Runs on an OS thread's own FS base with preemption off.
    unsafe fn take_image(&self, shape: &Shape) -> Box<[u8]> {
        let layout = Layout::from_size_align(shape.full_size(), shape.align).expect("a few KiB");
        let below = shape.size.saturating_sub(shape.tcb_size);
        // SAFETY: the block is zeroed, of the shape's size and alignment, and used here alone; its
        // vector is given back before it is. What the process had at its start is as in all blocks.
        unsafe {
            let block = alloc_zeroed(layout);
            assert!(!block.is_null(), "out of memory");
            let tcb = shape.place(block.add(layout.size()));
            shape.initialise(tcb);
            shape.reset(tcb);
            let bytes = core::slice::from_raw_parts((tcb as *const u8).sub(below), below).into();
            (self.deallocate)(tcb as *mut c_void, false);
            dealloc(block, layout);
            bytes
        }
    }
}
