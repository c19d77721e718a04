//! Where the code of the C library and of the dynamic linker is: the preempt signal spares it.

use std::sync::OnceLock;

/// Ranges of addresses.
static LIBC: OnceLock<Vec<core::ops::Range<usize>>> = OnceLock::new();

/// Finds the code. To be called before [`is_libc`] is asked.
pub(crate) fn note_libc() {
    LIBC.get_or_init(find_libc);
}

/// Returns whether `address` is code of the C library or the dynamic linker.
pub(crate) fn is_libc(address: usize) -> bool {
    LIBC.get().is_some_and(|ranges| ranges.iter().any(|range| range.contains(&address)))
}

fn find_libc() -> Vec<core::ops::Range<usize>> {
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, data: *mut libc::c_void) -> i32 {
        // SAFETY: dl_iterate_phdr passes a valid info, whose name is a string and whose headers are
        // an array, and our list.
        unsafe {
            let (info, ranges) = (&*info, &mut *data.cast::<Vec<core::ops::Range<usize>>>());
            let name = core::ffi::CStr::from_ptr(info.dlpi_name).to_bytes();
            let file = name.rsplit(|&byte| byte == b'/').next().unwrap_or(name);
            if !file.starts_with(b"libc.so") && !file.starts_with(b"ld-linux") {
                return 0;
            }
            for header in core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) {
                if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0 {
                    let start = (info.dlpi_addr + header.p_vaddr) as usize;
                    ranges.push(start..start + header.p_memsz as usize);
                }
            }
        }
        0
    }
    let mut ranges = Vec::new();
    // SAFETY: the callback matches its data.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut ranges).cast()) };
    ranges
}
