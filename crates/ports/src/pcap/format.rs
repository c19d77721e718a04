//! The capture file format that tcpdump and Wireshark read: a header of 24 bytes, and 16 bytes
//! before each frame (draft-ietf-opsawg-pcap, sections 4 and 5).
//!
//! Owns [`Writer`], which writes nanosecond timestamps in little endian, and [`Reader`], which
//! reads both byte orders and both resolutions and trusts no length it reads. Knows nothing about
//! ports or time.
//!
//! Not by the crate `pcap-file`, which checks this one in the tests: 2.0.0 refuses a record whose
//! frame was longer than the snap length, as `tcpdump -s` writes them, and would bring seven more
//! crates into the operator's command.

use std::io::{self, Read, Write};

/// Magic number of a file with nanosecond timestamps, in the writer's byte order.
const MAGIC_NS: u32 = 0xa1b2_3c4d;
/// Magic number of a file with microsecond timestamps.
const MAGIC_US: u32 = 0xa1b2_c3d4;
/// Link type of Ethernet frames (LINKTYPE_ETHERNET).
const ETHERNET: u32 = 1;
/// Maximum length of a record, in bytes: the longest that tcpdump writes.
pub const MAX_RECORD: u32 = 262_144;
/// Length of the file header in bytes.
pub const FILE_HEADER: u64 = 24;
/// Length of the header of each record in bytes.
pub const RECORD_HEADER: u64 = 16;

/// Why a file cannot be read any further.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// Reading failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The first bytes are not those of a capture file.
    #[error(
        "not a capture file: it begins with {0:#010x} (a pcapng file? `editcap -F nsecpcap` converts it)"
    )]
    Magic(u32),
    /// The frames are of another link type.
    #[error("frames of link type {0}; only Ethernet (1) can be replayed")]
    LinkType(u32),
    /// A record's length is above [`MAX_RECORD`].
    #[error("record {number} claims {len} bytes; at most {MAX_RECORD} are allowed")]
    Length {
        /// Number of the record, from 0.
        number: u64,
        /// The length in its header.
        len: u32,
    },
    /// The file ends within a record.
    #[error("the file ends within record {0}")]
    Truncated(u64),
}

/// Writes a capture file.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    snap: u32,
}

impl<W: Write> Writer<W> {
    /// Writes the file header; frames of the file are cut to `snap` bytes.
    ///
    /// # Errors
    /// If writing to `out` fails.
    pub fn new(mut out: W, snap: u32) -> io::Result<Self> {
        let mut header = [0; FILE_HEADER as usize];
        header[..4].copy_from_slice(&MAGIC_NS.to_le_bytes());
        // Version 2.4; the next two words are unused.
        header[4..6].copy_from_slice(&2u16.to_le_bytes());
        header[6..8].copy_from_slice(&4u16.to_le_bytes());
        header[16..20].copy_from_slice(&snap.to_le_bytes());
        header[20..].copy_from_slice(&ETHERNET.to_le_bytes());
        out.write_all(&header)?;
        Ok(Self { out, snap })
    }

    /// Writes a frame of `original_len` bytes, of which `frame` was kept, with timestamp `unix_ns`
    /// (nanoseconds since 1970). Returns the number of bytes written.
    ///
    /// # Errors
    /// If writing to `out` fails.
    pub fn write(&mut self, unix_ns: u64, original_len: u32, frame: &[u8]) -> io::Result<u64> {
        let frame = &frame[..frame.len().min(self.snap as usize)];
        let words = [
            (unix_ns / 1_000_000_000) as u32,
            (unix_ns % 1_000_000_000) as u32,
            frame.len() as u32,
            original_len,
        ];
        self.out.write_all(words.map(u32::to_le_bytes).as_flattened())?;
        self.out.write_all(frame)?;
        Ok(RECORD_HEADER + frame.len() as u64)
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// If writing to `out` fails.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// One record of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Nanoseconds since 1970.
    pub unix_ns: u64,
    /// Length of the frame on the wire, in bytes.
    pub original_len: u32,
    /// The bytes of the frame that were kept.
    pub frame: Vec<u8>,
}

/// Reads a capture file.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    big_endian: bool,
    /// Nanoseconds per unit of the second half of a timestamp.
    fraction_ns: u64,
    number: u64,
}

impl<R: Read> Reader<R> {
    /// Reads the file header.
    ///
    /// # Errors
    /// [`FormatError`] if it is not that of a readable capture file.
    pub fn new(mut input: R) -> Result<Self, FormatError> {
        let mut header = [0; FILE_HEADER as usize];
        input.read_exact(&mut header)?;
        let magic = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let (big_endian, fraction_ns) = match (magic, magic.swap_bytes()) {
            (MAGIC_NS, _) => (false, 1),
            (MAGIC_US, _) => (false, 1000),
            (_, MAGIC_NS) => (true, 1),
            (_, MAGIC_US) => (true, 1000),
            _ => return Err(FormatError::Magic(magic)),
        };
        let reader = Self { input, big_endian, fraction_ns, number: 0 };
        // The upper bits hold the length of the frame check sequence.
        match reader.word(&header, 20) & 0xffff {
            ETHERNET => Ok(reader),
            other => Err(FormatError::LinkType(other)),
        }
    }

    fn word(&self, bytes: &[u8], at: usize) -> u32 {
        let word = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        if self.big_endian { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
    }

    /// Returns the next record; `None` at the end of the file.
    ///
    /// # Errors
    /// [`FormatError`]; nothing can be read after one.
    pub fn next_packet(&mut self) -> Result<Option<Packet>, FormatError> {
        let mut header = [0; RECORD_HEADER as usize];
        let mut have = 0;
        while have < header.len() {
            match self.input.read(&mut header[have..]) {
                Ok(0) if have == 0 => return Ok(None),
                Ok(0) => return Err(FormatError::Truncated(self.number)),
                Ok(count) => have += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        let [seconds, fraction, len, original_len] = [0, 4, 8, 12].map(|at| self.word(&header, at));
        if len > MAX_RECORD {
            return Err(FormatError::Length { number: self.number, len });
        }
        let mut frame = vec![0; len as usize];
        self.input.read_exact(&mut frame).map_err(|_| FormatError::Truncated(self.number))?;
        self.number += 1;
        let unix_ns = u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * self.fraction_ns;
        Ok(Some(Packet { unix_ns, original_len, frame }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packets() -> impl Strategy<Value = Vec<Packet>> {
        let frame = prop::collection::vec(any::<u8>(), 0..200);
        let packet = (0..u64::from(u32::MAX) * 1_000_000_000, 0..8_000u32, frame).prop_map(
            |(unix_ns, more, frame)| Packet { unix_ns, original_len: frame.len() as u32 + more, frame },
        );
        prop::collection::vec(packet, 0..20)
    }

    fn written(packets: &[Packet], snap: u32) -> Vec<u8> {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, snap).unwrap();
        for packet in packets {
            writer.write(packet.unix_ns, packet.original_len, &packet.frame).unwrap();
        }
        file
    }

    fn read(file: &[u8]) -> Result<Vec<Packet>, FormatError> {
        let mut reader = Reader::new(file)?;
        let mut packets = Vec::new();
        while let Some(packet) = reader.next_packet()? {
            packets.push(packet);
        }
        Ok(packets)
    }

    proptest! {
        #[test]
        fn another_library_reads_what_is_written(packets in packets()) {
            let file = written(&packets, 9018);
            let mut oracle = pcap_file::pcap::PcapReader::new(&file[..]).unwrap();
            let header = oracle.header();
            prop_assert_eq!(header.ts_resolution, pcap_file::TsResolution::NanoSecond);
            prop_assert_eq!((header.datalink, header.snaplen), (pcap_file::DataLink::ETHERNET, 9018));
            let mut seen = Vec::new();
            while let Some(packet) = oracle.next_packet() {
                let packet = packet.unwrap();
                let unix_ns = packet.timestamp.as_nanos() as u64;
                seen.push(Packet { unix_ns, original_len: packet.orig_len, frame: packet.data.into_owned() });
            }
            prop_assert_eq!(&seen, &packets);
            prop_assert_eq!(read(&file).unwrap(), packets);
        }

        #[test]
        fn what_another_library_writes_is_read(packets in packets(), big: bool, microseconds: bool) {
            use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
            let header = PcapHeader {
                endianness: if big { pcap_file::Endianness::Big } else { pcap_file::Endianness::Little },
                ts_resolution: if microseconds { pcap_file::TsResolution::MicroSecond } else { pcap_file::TsResolution::NanoSecond },
                ..PcapHeader::default()
            };
            let mut oracle = PcapWriter::with_header(Vec::new(), header).unwrap();
            let unit = if microseconds { 1000 } else { 1 };
            let mut expected = packets;
            for packet in &mut expected {
                packet.unix_ns -= packet.unix_ns % unit;
                let stamp = std::time::Duration::from_nanos(packet.unix_ns);
                oracle.write_packet(&PcapPacket::new(stamp, packet.original_len, &packet.frame)).unwrap();
            }
            prop_assert_eq!(read(&oracle.into_writer()).unwrap(), expected);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), good_start: bool) {
            let bytes = if good_start { [written(&[], 100), bytes].concat() } else { bytes };
            let _ = read(&bytes);
        }

        #[test]
        fn a_file_cut_anywhere_gives_its_whole_frames_and_then_ends(packets in packets(), cut in 0..2000usize) {
            let file = written(&packets, 9018);
            let cut = FILE_HEADER as usize + cut % (file.len() - FILE_HEADER as usize + 1);
            let mut reader = Reader::new(&file[..cut]).unwrap();
            let mut count = 0;
            let ended = loop {
                match reader.next_packet() {
                    Ok(Some(packet)) => { prop_assert_eq!(&packet, &packets[count]); count += 1; }
                    other => break other,
                }
            };
            prop_assert!(matches!(ended, Ok(None) | Err(FormatError::Truncated(_))));
        }
    }

    #[test]
    fn frames_are_cut_to_the_snap_length() {
        let whole = Packet { unix_ns: 5, original_len: 100, frame: vec![7; 100] };
        let kept = read(&written(&[whole], 60)).unwrap();
        assert_eq!((kept[0].frame.len(), kept[0].original_len), (60, 100));
    }

    #[test]
    fn a_length_that_cannot_be_is_not_allocated() {
        let mut file = written(&[], 100);
        file.extend([0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        assert!(matches!(read(&file), Err(FormatError::Length { number: 0, len: u32::MAX })));
        assert!(matches!(read(&[0x0a; 24]), Err(FormatError::Magic(0x0a0a_0a0a))));
    }
}
