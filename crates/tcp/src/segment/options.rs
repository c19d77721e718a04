//! TCP options: maximum segment size (RFC 9293 section 3.2), window scale and timestamps (RFC
//! 7323), selective acknowledgment (RFC 2018), Fast Open (RFC 7413).
//!
//! Parsing accepts anything and never fails. Writing lays options out as Linux does, each at an
//! offset where its words are aligned.

use super::fast_open::{Cookie, FastOpen};
use crate::seq::Seq;

/// Most bytes that options can take.
pub const MAX_OPTIONS: usize = 40;
/// Most blocks that fit into one header without timestamps (RFC 2018 section 3).
pub const MAX_SACK_BLOCKS: usize = 4;
/// The largest shift (RFC 7323 section 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;
const FAST_OPEN: u8 = 34;

/// The first bytes of the options in most headers after the handshake: padding, kind and length of
/// timestamps.
const TIMESTAMPS_PREFIX: [u8; 4] = [NOP, NOP, TIMESTAMPS, 10];

/// A timestamps option (RFC 7323 section 3.2), in ticks of the sender's and of the receiver's
/// clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timestamps {
    /// The sender's clock.
    pub value: u32,
    /// The receiver's clock as the sender last saw it; meaningful with ACK.
    pub echo: u32,
}

/// A run of bytes held by the receiver beyond its acknowledgment (RFC 2018 section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SackBlock {
    /// The first byte.
    pub start: Seq,
    /// The number after the last byte.
    pub end: Seq,
}

impl SackBlock {
    /// Returns true for a block without bytes.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

/// Up to four blocks, most recent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SackBlocks {
    len: u8,
    blocks: [SackBlock; MAX_SACK_BLOCKS],
}

impl SackBlocks {
    /// Appends a block; ignores a fifth.
    #[inline]
    pub fn push(&mut self, block: SackBlock) {
        if let Some(slot) = self.blocks.get_mut(usize::from(self.len)) {
            *slot = block;
            self.len += 1;
        }
    }

    /// Returns the blocks, in the option's order.
    #[inline]
    pub fn as_slice(&self) -> &[SackBlock] {
        &self.blocks[..usize::from(self.len)]
    }

    /// Returns true if there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl FromIterator<SackBlock> for SackBlocks {
    fn from_iter<I: IntoIterator<Item = SackBlock>>(iter: I) -> Self {
        let mut blocks = Self::default();
        iter.into_iter().take(MAX_SACK_BLOCKS).for_each(|block| blocks.push(block));
        blocks
    }
}

/// The options of a header. Which of them count depends on the segment: the first three and the
/// last only in a SYN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// The largest payload the sender wants to receive.
    pub mss: Option<u16>,
    /// The shift of the sender's later windows, at most 14.
    pub window_scale: Option<u8>,
    /// The sender understands selective acknowledgment.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// The ranges that the sender holds out of order. As many are written as fit.
    pub sack: SackBlocks,
    /// Fast Open.
    pub fast_open: FastOpen,
}

impl Options {
    /// Parses the bytes between the fixed header and the data.
    #[inline]
    pub fn parse(mut bytes: &[u8]) -> Self {
        let mut options = Self::default();
        if bytes.len() >= 12 && bytes[..4] == TIMESTAMPS_PREFIX {
            options.timestamps = Some(timestamps(&bytes[4..12]));
            bytes = &bytes[12..];
        }
        // At most forty steps, because each consumes at least one byte.
        while let Some((&kind, rest)) = bytes.split_first() {
            if kind == END {
                break;
            }
            if kind == NOP {
                bytes = rest;
                continue;
            }
            // The length includes the bytes of kind and length.
            let Some((&len, _)) = rest.split_first() else { break };
            let Some((option, behind)) = bytes.split_at_checked(usize::from(len)) else { break };
            if option.len() < 2 {
                break;
            }
            options.apply(kind, &option[2..]);
            bytes = behind;
        }
        options
    }

    fn apply(&mut self, kind: u8, value: &[u8]) {
        match (kind, value) {
            (MSS, &[high, low]) => self.mss = Some(u16::from_be_bytes([high, low])),
            // Greater shifts count as 14 (RFC 7323 section 2.3).
            (WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift.min(MAX_WINDOW_SCALE)),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (TIMESTAMPS, value) if value.len() == 8 => self.timestamps = Some(timestamps(value)),
            (SACK, value) if value.len().is_multiple_of(8) => {
                let block = |b: &[u8; 8]| SackBlock { start: Seq(word(b, 0)), end: Seq(word(b, 4)) };
                self.sack = value.as_chunks::<8>().0.iter().map(block).collect();
            }
            (FAST_OPEN, []) => self.fast_open = FastOpen::Request,
            (FAST_OPEN, value) => {
                self.fast_open = Cookie::new(value).map_or(FastOpen::None, FastOpen::Cookie);
            }
            _ => {}
        }
    }

    /// Returns the bytes these options take when written: a multiple of four, at most 40.
    #[inline]
    pub fn len(&self) -> usize {
        let fixed = self.len_without_sack();
        match self.sack_that_fits() {
            0 => fixed,
            blocks => fixed + 4 + 8 * blocks,
        }
    }

    /// Returns true if there are none to write.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn len_without_sack(&self) -> usize {
        let timestamps = if self.timestamps.is_some() { 12 } else { 0 };
        // Beside timestamps, "SACK permitted" takes the place of their padding.
        let permitted = if self.sack_permitted && self.timestamps.is_none() { 4 } else { 0 };
        let four = |present: bool| if present { 4 } else { 0 };
        let others = timestamps + permitted + self.fast_open.len();
        four(self.mss.is_some()) + others + four(self.window_scale.is_some())
    }

    #[inline]
    pub(super) fn sack_that_fits(&self) -> usize {
        let room = MAX_OPTIONS.saturating_sub(self.len_without_sack()).saturating_sub(4) / 8;
        self.sack.as_slice().len().min(room)
    }

    /// Writes the options into `out`, which has exactly their length.
    #[inline]
    pub(super) fn emit(&self, out: &mut [u8]) {
        let mut out = Writer { out, at: 0 };
        if let Some(mss) = self.mss {
            let [high, low] = mss.to_be_bytes();
            out.put([MSS, 4, high, low]);
        }
        if let Some(Timestamps { value, echo }) = self.timestamps {
            let padding = if self.sack_permitted { [SACK_PERMITTED, 2] } else { [NOP, NOP] };
            out.put([padding[0], padding[1], TIMESTAMPS, 10]);
            out.put(value.to_be_bytes());
            out.put(echo.to_be_bytes());
        } else if self.sack_permitted {
            out.put([NOP, NOP, SACK_PERMITTED, 2]);
        }
        if let Some(shift) = self.window_scale {
            out.put([NOP, WINDOW_SCALE, 3, shift]);
        }
        match &self.fast_open {
            FastOpen::None => {}
            FastOpen::Request => out.put([FAST_OPEN, 2, NOP, NOP]),
            FastOpen::Cookie(cookie) => out.put_cookie(cookie.as_bytes()),
        }
        let blocks = self.sack_that_fits();
        if blocks > 0 {
            out.put([NOP, NOP, SACK, 2 + 8 * blocks as u8]);
            for block in &self.sack.as_slice()[..blocks] {
                out.put(block.start.0.to_be_bytes());
                out.put(block.end.0.to_be_bytes());
            }
        }
        debug_assert_eq!(out.at, out.out.len());
    }
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    /// Writes the option of a cookie, and padding behind it.
    fn put_cookie(&mut self, cookie: &[u8]) {
        let len = 2 + cookie.len();
        let out = &mut self.out[self.at..self.at + len.next_multiple_of(4)];
        out.fill(NOP);
        (out[0], out[1]) = (FAST_OPEN, len as u8);
        out[2..len].copy_from_slice(cookie);
        self.at += out.len();
    }

    #[inline]
    fn put(&mut self, word: [u8; 4]) {
        self.out[self.at..self.at + 4].copy_from_slice(&word);
        self.at += 4;
    }
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline]
fn timestamps(value: &[u8]) -> Timestamps {
    Timestamps { value: word(value, 0), echo: word(value, 4) }
}
