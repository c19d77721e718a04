//! `tailwater capture`: writes frames of a running IOKernel to a file that tcpdump and Wireshark
//! read.
//!
//! Owns the watcher's side of a capture: it empties the ring that the IOKernel fills, and writes
//! files, with limits and rotation. The IOKernel never waits: when this program or its disk is
//! slow, frames are missing, and their number is printed at the end.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use rustix::fd::AsFd;
use tailwater_ports::pcap::create_private;
use tailwater_ports::pcap::format::{FILE_HEADER, RECORD_HEADER, Writer};
use tailwater_shm::control::{CaptureRequest, Direction};
use tailwater_shm::ring::{Consumer, FrameBuffer};
use tailwater_testbed::socket::IokernelArg;

use tailwater_testbed::exit::EndsWith2;
use tailwater_testbed::interrupt::{Interrupt, Interrupted};
use tailwater_testbed::note;
use tailwater_workload::units::parse_time_ns;

use crate::query::{Watch, parse_buffer};

/// Pause after the ring was found empty. At 1 million small frames a second a ring of 4 MiB holds
/// 32 ms of them.
const PAUSE: Duration = Duration::from_millis(1);
/// Maximum number of files of a rotation.
const MAX_FILES: u32 = 1000;

/// Write the frames that an IOKernel switches to a capture file
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  tailwater capture -w all.pcap                       every frame once, until interrupted
  tailwater capture -w - | tcpdump -nr -              as they come
  tailwater capture -w - | wireshark -k -i -
  tailwater capture --program web --direction rx -w web.pcap --duration 10s
  tailwater capture --through eth1 --snap 128 --count 1000 -w head.pcap
  tailwater capture -w ring.pcap --rotate-mb 100 --files 5

Stamps are in nanoseconds, taken when the IOKernel sees the frame. Needs the IOKernel's user, or root.")]
pub struct CaptureArgs {
    /// File to write; - is standard output
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    #[command(flatten)]
    iokernel: IokernelArg,
    /// Only frames from and to this program (its name in `tailwater ps`), also if it starts later
    #[arg(long = "program", alias = "runtime", value_name = "NAME")]
    runtime: Option<String>,
    /// Only frames through this port (its name in `tailwater stats --json`)
    #[arg(long, value_name = "NAME")]
    through: Option<String>,
    /// Only received or only sent by the program; in or out through the port
    #[arg(long, value_enum)]
    direction: Option<Side>,
    /// Keep at most this many bytes of each frame, 14 to 9018
    #[arg(long, value_name = "BYTES", default_value_t = 9018, value_parser = clap::value_parser!(u16).range(14..=9018))]
    snap: u16,
    /// End after this many frames
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this time
    #[arg(long, value_name = "DURATION", value_parser = parse_time_ns)]
    duration: Option<u64>,
    /// Begin a new file (FILE.1, FILE.2, ...) before one grows beyond this many megabytes
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..))]
    rotate_mb: Option<u64>,
    /// With --rotate-mb: keep at most this many files; the oldest is overwritten
    #[arg(long, value_name = "N", requires = "rotate_mb", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_FILES)))]
    files: u32,
    /// Memory in megabytes for frames that wait to be written: 1, 2, 4, 8 or 16
    #[arg(long, value_name = "MB", default_value_t = 4, value_parser = parse_buffer)]
    buffer: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Side {
    Rx,
    Tx,
}

/// Captures until a limit is reached or a signal arrives.
///
/// # Errors
/// If nothing listens at the socket, the request is refused, or the file cannot be written.
pub fn run(args: &CaptureArgs) -> anyhow::Result<()> {
    if args.rotate_mb.is_some() && args.write == Path::new("-") {
        let why = "--rotate-mb begins new files, and standard output is one: name a file with --write";
        return Err(EndsWith2::wrap(anyhow::Error::msg(why)));
    }
    let interrupt = Interrupt::catch()?;
    let mut ring = Frames::begin(args)?;
    let mut output = Output::create(args)?;
    let begun = Instant::now();
    let limit = args.duration.map(Duration::from_nanos);
    let mut frames = 0;
    let full = |frames| args.count.is_some_and(|most| frames >= most);
    let (mut connected, mut interrupted) = (true, false);
    loop {
        let over = interrupted || !connected || limit.is_some_and(|limit| begun.elapsed() >= limit);
        // One ring's content at most: frames may come in faster than they are written.
        let mut bytes = 0;
        while !full(frames)
            && bytes < u64::from(args.buffer) << 20
            && let Some(seen) = ring.next()?
        {
            bytes += RECORD_HEADER + seen.frame.len() as u64;
            match output.write(&seen) {
                Ok(()) => frames += 1,
                // The reader of standard output has closed it.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                Err(error) => return Err(error).context(args.write.display().to_string()),
            }
        }
        // Readers of the file see all frames so far.
        match if bytes > 0 { output.writer.flush() } else { Ok(()) } {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            result => result.context(args.write.display().to_string())?,
        }
        if over || full(frames) {
            break;
        }
        // The IOKernel sends nothing during a capture: a readable socket has been closed.
        match interrupt.wait_readable(Some(ring.watch.socket.as_fd()), Instant::now() + PAUSE) {
            Ok(readable) => connected = !readable,
            Err(Interrupted) => interrupted = true,
        }
    }
    match if connected { ring.dropped() } else { None } {
        Some(missing) => note!("{frames} frames, {missing} missing because this program was slow"),
        None => note!("{frames} frames; how many are missing is not known"),
    }
    anyhow::ensure!(connected, "the IOKernel ended the capture");
    Ok(())
}

/// A frame that was taken out of the ring.
struct Seen<'a> {
    unix_ns: u64,
    original_len: u32,
    frame: &'a [u8],
}

/// The connection and its ring.
struct Frames {
    watch: Watch<Consumer>,
    buffer: FrameBuffer,
}

impl Frames {
    fn begin(args: &CaptureArgs) -> anyhow::Result<Self> {
        let request = CaptureRequest {
            runtime: args.runtime.clone(),
            port: args.through.clone(),
            direction: args.direction.map(|side| match side {
                Side::Rx => Direction::Rx,
                Side::Tx => Direction::Tx,
            }),
            snap: args.snap,
            ring_bytes: args.buffer << 20,
        };
        let watch = Watch::capture(&args.iokernel, request)?;
        Ok(Self { watch, buffer: FrameBuffer::new() })
    }

    /// Returns the next frame, if one waits.
    fn next(&mut self) -> anyhow::Result<Option<Seen<'_>>> {
        let Watch { memory: ring, clock, anchor, .. } = &mut self.watch;
        let Some(record) = ring.peek().context("the IOKernel wrote an impossible ring")? else {
            return Ok(None);
        };
        let (stamp, original_len) = (record.stamp(), record.hash());
        let frame = record.copy_frame(&mut self.buffer);
        // The frame has been copied: its place is free.
        record.advance();
        ring.publish();
        let unix_ns = anchor.unix_ns + clock.to_ns(stamp.saturating_sub(anchor.cycles));
        Ok(Some(Seen { unix_ns, original_len, frame }))
    }

    /// Returns the number of frames that found the ring full; `None` if the IOKernel is gone.
    fn dropped(&self) -> Option<u64> {
        let stats = self.watch.statistics()?;
        let captures = stats["captures"].as_array()?;
        captures.iter().find(|capture| capture["id"] == self.watch.anchor.id)?["dropped"].as_u64()
    }
}

/// The file, or the files of a rotation.
struct Output {
    path: PathBuf,
    snap: u32,
    /// Maximum bytes of one file, and number of files.
    rotation: Option<(u64, u32)>,
    number: u32,
    written: u64,
    writer: Writer<Box<dyn Write>>,
}

impl Output {
    fn create(args: &CaptureArgs) -> anyhow::Result<Self> {
        let rotation = args.rotate_mb.map(|mb| (mb * 1_000_000, args.files));
        let (path, snap) = (args.write.clone(), u32::from(args.snap));
        let first = if rotation.is_some() { numbered(&path, 1) } else { path.clone() };
        let writer = open(&first, snap).with_context(|| first.display().to_string())?;
        Ok(Self { path, snap, rotation, number: 1, written: FILE_HEADER, writer })
    }

    fn write(&mut self, seen: &Seen<'_>) -> io::Result<()> {
        if let Some((most, files)) = self.rotation
            && self.written + RECORD_HEADER + seen.frame.len() as u64 > most
        {
            self.writer.flush()?;
            self.number = self.number % files + 1;
            self.writer = open(&numbered(&self.path, self.number), self.snap)?;
            self.written = FILE_HEADER;
        }
        self.written += self.writer.write(seen.unix_ns, seen.original_len, seen.frame)?;
        Ok(())
    }
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

fn open(path: &Path, snap: u32) -> io::Result<Writer<Box<dyn Write>>> {
    let out: Box<dyn Write> =
        if path == Path::new("-") { Box::new(io::stdout()) } else { Box::new(create_private(path)?) };
    Writer::new(Box::new(BufWriter::with_capacity(1 << 16, out)), snap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: CaptureArgs,
    }

    #[test]
    fn a_rotation_keeps_the_latest_files_each_a_complete_capture() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring.pcap");
        let words = ["capture", "-w", path.to_str().unwrap(), "--rotate-mb", "1", "--files", "3"];
        let mut output = Output::create(&Cli::parse_from(words).args).unwrap();
        let frame = [7; 9000];
        for i in 0..600u64 {
            output.write(&Seen { unix_ns: i, original_len: 9000, frame: &frame }).unwrap();
        }
        output.writer.flush().unwrap();
        let mut newest = Vec::new();
        for number in 1..=4 {
            let Ok(file) = std::fs::File::open(numbered(&path, number)) else { continue };
            assert!(file.metadata().unwrap().len() <= 1_000_000);
            let mut reader = tailwater_ports::pcap::format::Reader::new(file).unwrap();
            while let Some(packet) = reader.next_packet().unwrap() {
                newest.push(packet.unix_ns);
            }
        }
        newest.sort_unstable();
        assert_eq!(newest.len() as u64, 600 - newest[0], "not the latest: {newest:?}");
        assert!(newest.len() > 200, "{}", newest.len());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn impossible_words_are_refused() {
        for words in [
            &["capture"][..],
            &["capture", "-w", "x", "--snap", "13"],
            &["capture", "-w", "x", "--buffer", "3"],
            &["capture", "-w", "x", "--files", "0"],
            &["capture", "-w", "x", "--direction", "up"],
        ] {
            assert!(Cli::try_parse_from(words).is_err(), "{words:?}");
        }
    }
}
