//! TCP segments as bytes, written and read apart from the crate under test.

/// The control bits of the header.
pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;
pub const URG: u8 = 32;
pub const ECE: u8 = 64;
pub const CWR: u8 = 128;

/// The ECN field of the IP header.
pub const ECT0: u8 = 2;
pub const CE: u8 = 3;

/// A segment with absolute sequence numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Packet {
    pub source: u16,
    pub destination: u16,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub urgent: u16,
    pub mss: Option<u16>,
    pub scale: Option<u8>,
    pub sack_permitted: bool,
    pub timestamps: Option<(u32, u32)>,
    pub sack: Vec<(u32, u32)>,
    /// Fast Open: an empty cookie asks for one (RFC 7413 section 4.1.1).
    pub cookie: Option<Vec<u8>>,
    /// Further options as bytes, written before the others.
    pub raw_options: Vec<u8>,
    pub payload: Vec<u8>,
    pub ecn: u8,
}

impl Packet {
    /// Returns the sequence numbers that the segment takes.
    pub fn numbers(&self) -> u32 {
        self.payload.len() as u32 + u32::from(self.flags & SYN != 0) + u32::from(self.flags & FIN != 0)
    }

    fn options(&self) -> Vec<u8> {
        let mut bytes = self.raw_options.clone();
        if let Some(mss) = self.mss {
            bytes.extend([2, 4]);
            bytes.extend(mss.to_be_bytes());
        }
        if let Some(scale) = self.scale {
            bytes.extend([3, 3, scale]);
        }
        if self.sack_permitted {
            bytes.extend([4, 2]);
        }
        if let Some((value, echo)) = self.timestamps {
            bytes.extend([8, 10]);
            bytes.extend(value.to_be_bytes());
            bytes.extend(echo.to_be_bytes());
        }
        if let Some(cookie) = &self.cookie {
            bytes.extend([34, 2 + cookie.len() as u8]);
            bytes.extend(cookie);
        }
        if !self.sack.is_empty() {
            bytes.extend([5, 2 + 8 * self.sack.len() as u8]);
            for (start, end) in &self.sack {
                bytes.extend(start.to_be_bytes());
                bytes.extend(end.to_be_bytes());
            }
        }
        while !bytes.len().is_multiple_of(4) {
            bytes.push(1);
        }
        bytes
    }

    /// Returns the segment with a checksum of zero.
    pub fn emit(&self) -> Vec<u8> {
        let options = self.options();
        let mut bytes = Vec::new();
        bytes.extend(self.source.to_be_bytes());
        bytes.extend(self.destination.to_be_bytes());
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.ack.to_be_bytes());
        bytes.extend([(5 + options.len() as u8 / 4) << 4, self.flags]);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(self.urgent.to_be_bytes());
        bytes.extend(options);
        bytes.extend(&self.payload);
        bytes
    }

    /// Reads a segment; `None` if it is not one.
    pub fn read(bytes: &[u8], ecn: u8) -> Option<Self> {
        let half = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let header = usize::from(bytes.get(12)? >> 4) * 4;
        let mut packet = Self {
            source: half(0)?,
            destination: half(2)?,
            seq: word(bytes, 4)?,
            ack: word(bytes, 8)?,
            flags: *bytes.get(13)?,
            window: half(14)?,
            urgent: half(18)?,
            payload: bytes.get(header..)?.to_vec(),
            ecn: ecn & 3,
            ..Self::default()
        };
        let mut options = bytes.get(20..header)?;
        while let [kind, rest @ ..] = options {
            match kind {
                0 => break,
                1 => options = rest,
                _ => {
                    let len = usize::from(*rest.first()?);
                    packet.option(*kind, options.get(2..len)?)?;
                    options = options.get(len..)?;
                }
            }
        }
        Some(packet)
    }

    fn option(&mut self, kind: u8, value: &[u8]) -> Option<()> {
        match kind {
            2 => self.mss = Some(u16::from_be_bytes(value.try_into().ok()?)),
            3 => self.scale = value.first().copied(),
            4 => self.sack_permitted = true,
            5 => {
                let block = |block: &[u8]| Some((word(block, 0)?, word(block, 4)?));
                self.sack = value.chunks(8).map(block).collect::<Option<_>>()?;
            }
            8 => self.timestamps = Some((word(value, 0)?, word(value, 4)?)),
            34 => self.cookie = Some(value.to_vec()),
            _ => {}
        }
        Some(())
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
