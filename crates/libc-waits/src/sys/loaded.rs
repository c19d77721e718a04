//! The libraries of this process whose code may be changed.

use crate::image::Segment;
use core::ffi::{CStr, c_int, c_void};

/// A library as it is mapped.
#[derive(Debug)]
pub struct Loaded {
    /// Its path, as the dynamic linker has it.
    pub path: String,
    /// Its readable segments. What the dynamic linker writes in data segments is not looked at.
    pub segments: Vec<Segment<'static>>,
    /// Address of `PT_GNU_EH_FRAME`; 0 if there is none.
    pub eh_frame_hdr: u64,
}

/// Returns the loaded libraries whose file has one of these names.
///
/// The result refers to their memory: none of them may be unloaded while it is used. The C library
/// and its parts never are.
pub fn libraries(names: &[&str]) -> Vec<Loaded> {
    struct Search<'n> {
        names: &'n [&'n str],
        found: Vec<Loaded>,
    }
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: dl_iterate_phdr passes a valid info with a C string, and our Search.
        let (info, search, path) = unsafe {
            let info = &*info;
            (info, &mut *data.cast::<Search<'_>>(), CStr::from_ptr(info.dlpi_name).to_string_lossy())
        };
        let file = path.rsplit('/').next().unwrap_or_default();
        if search.names.contains(&file) {
            // SAFETY: the info is valid, and its library is mapped.
            search.found.push(unsafe { read(info, path.into_owned()) });
        }
        0
    }
    let mut search = Search { names, found: Vec::new() };
    // SAFETY: the callback matches its data.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

/// Reads where the segments of a library are.
///
/// # Safety
/// `info` is what `dl_iterate_phdr` passes for a library that stays mapped.
unsafe fn read(info: &libc::dl_phdr_info, path: String) -> Loaded {
    // SAFETY: by the caller's contract.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let mut loaded = Loaded { path, segments: Vec::new(), eh_frame_hdr: 0 };
    for header in headers {
        let address = info.dlpi_addr + header.p_vaddr;
        match header.p_type {
            libc::PT_LOAD if header.p_flags & libc::PF_R != 0 && header.p_flags & libc::PF_W == 0 => {
                // SAFETY: a segment that is mapped for reading as long as the library is loaded.
                let bytes =
                    unsafe { core::slice::from_raw_parts(address as *const u8, header.p_memsz as usize) };
                let executable = header.p_flags & libc::PF_X != 0;
                loaded.segments.push(Segment { address, bytes, executable });
            }
            libc::PT_GNU_EH_FRAME => loaded.eh_frame_hdr = address,
            _ => {}
        }
    }
    loaded
}
