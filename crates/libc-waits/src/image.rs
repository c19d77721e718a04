//! One library as it lies in memory: its segments, and where its functions begin and end.
//!
//! Addresses are those of the running process, or, for a library that is read from a file, those of
//! the file. Function bounds come from the table of frame descriptions that every library has for
//! unwinding (`PT_GNU_EH_FRAME`).
//!
//! Never reads outside the segments that it was given.

use gimli::{BaseAddresses, EhFrame, EhFrameHdr, LittleEndian, UnwindSection};
use std::ops::Range;

/// A part of a library that is mapped as a whole.
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a> {
    /// Address of the first byte.
    pub address: u64,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// True if it may be executed.
    pub executable: bool,
}

/// A library. See the module documentation.
#[derive(Debug, Clone)]
pub struct Image<'a> {
    segments: Vec<Segment<'a>>,
    /// Bounds of all functions, in order of their addresses.
    functions: Vec<Range<u64>>,
}

/// A library has no readable table of its functions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("its table of functions (.eh_frame_hdr) cannot be read: {0}")]
pub struct NoFunctions(String);

impl<'a> Image<'a> {
    /// Reads the bounds of all functions of the library with these segments, whose
    /// `PT_GNU_EH_FRAME` is at `eh_frame_hdr`.
    ///
    /// # Errors
    /// [`NoFunctions`] if the table is missing or malformed.
    pub fn new(segments: Vec<Segment<'a>>, eh_frame_hdr: u64) -> Result<Self, NoFunctions> {
        let mut image = Self { segments, functions: Vec::new() };
        image.functions = image.read_functions(eh_frame_hdr).map_err(|why| NoFunctions(why.to_string()))?;
        Ok(image)
    }

    fn read_functions(&self, at: u64) -> gimli::Result<Vec<Range<u64>>> {
        let bases = BaseAddresses::default().set_eh_frame_hdr(at);
        let header = EhFrameHdr::new(self.from(at), LittleEndian).parse(&bases, 8)?;
        let gimli::Pointer::Direct(frames_at) = header.eh_frame_ptr() else {
            return Err(gimli::Error::NoUnwindInfoForAddress);
        };
        let bases = bases.set_eh_frame(frames_at);
        let frames = EhFrame::new(self.from(frames_at), LittleEndian);
        let table = header.table().ok_or(gimli::Error::NoUnwindInfoForAddress)?;
        let mut functions = Vec::new();
        let mut entries = table.iter(&bases);
        while let Some((_, description)) = entries.next()? {
            let offset = table.pointer_to_offset(description)?;
            let fde = frames.fde_from_offset(&bases, offset, EhFrame::cie_from_offset)?;
            // The description of a signal's return begins a byte early: unwinders look for the byte
            // before a return address, and this one is no call's (glibc's `__restore_rt`).
            let early = u64::from(fde.is_signal_trampoline());
            functions.push(fde.initial_address() + early..fde.end_address());
        }
        functions.sort_unstable_by_key(|function| function.start);
        functions.dedup();
        Ok(functions)
    }

    /// Returns whether `address` lies in an executable segment.
    pub fn is_code(&self, address: u64) -> bool {
        self.executable().any(|s| (s.address..s.address + s.bytes.len() as u64).contains(&address))
    }

    /// Returns the bytes from `address` to the end of its segment; none outside all segments.
    pub fn from(&self, address: u64) -> &'a [u8] {
        let inside = |s: &&Segment<'a>| (s.address..s.address + s.bytes.len() as u64).contains(&address);
        let segment = self.segments.iter().find(inside);
        segment.map_or(&[], |s| &s.bytes[(address - s.address) as usize..])
    }

    /// Returns the bytes of a function; fewer if it does not lie within one segment.
    pub fn bytes(&self, function: &Range<u64>) -> &'a [u8] {
        let bytes = self.from(function.start);
        &bytes[..bytes.len().min((function.end - function.start) as usize)]
    }

    /// Returns the bounds of all functions.
    pub fn functions(&self) -> &[Range<u64>] {
        &self.functions
    }

    /// Returns the segments that may be executed.
    pub fn executable(&self) -> impl Iterator<Item = &Segment<'a>> {
        self.segments.iter().filter(|segment| segment.executable)
    }

    /// Returns the addresses just behind and just before all segments.
    pub fn bounds(&self) -> Range<u64> {
        let start = self.segments.iter().map(|s| s.address).min().unwrap_or(0);
        let end = self.segments.iter().map(|s| s.address + s.bytes.len() as u64).max().unwrap_or(0);
        start..end
    }
}
