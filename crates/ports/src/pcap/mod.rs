//! A capture file as the uplink: its frames are injected, at their recorded distances or as fast as
//! possible, and outgoing frames are recorded into another file.
//!
//! Owns the two files and a thread for each, so that the polling thread never waits for a disk:
//! frames pass through queues of [`QUEUE`] entries. If the recorder is behind, frames are dropped
//! and counted. [`format`](mod@format) has the file format.

pub mod format;

use rustix::fs::{Access, access};
use serde_json::{Value, json};
use std::fs::{File, Metadata, Permissions};
use std::io::{BufReader, BufWriter};
use std::net::Ipv4Addr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};
use tailwater_shm::ring::MAX_FRAME;
use tailwater_shm::{Clock, Cycles, clock};

use super::grammar::{OptionError, flag, value, words};
use super::{Account, Attachment, Context, Inject, Port, PortError};
use format::{Packet, Reader, Writer};

/// Capacity of the queue between the polling thread and the thread of a file, in frames.
pub const QUEUE: usize = 1024;

/// Which files to use. Parsed from words: `replay=FILE`, `record=FILE`, `fast`, `gateway=IP`; at
/// least one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PcapSpec {
    /// File whose frames are injected.
    pub replay: Option<PathBuf>,
    /// File into which outgoing frames are recorded; an existing one is replaced.
    pub record: Option<PathBuf>,
    /// Replay as fast as the runtimes take the frames, not at their recorded distances.
    pub fast: bool,
    /// The address that runtimes use as their gateway to other networks.
    pub gateway: Option<Ipv4Addr>,
}

impl FromStr for PcapSpec {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut spec = Self::default();
        let path = |v: &str| (!v.is_empty()).then(|| PathBuf::from(v));
        for (key, given) in words(text)? {
            match key {
                "replay" => spec.replay = Some(value(key, given, "a file", path)?),
                "record" => spec.record = Some(value(key, given, "a file", path)?),
                "fast" => spec.fast = flag(key, given)?,
                "gateway" => spec.gateway = Some(value(key, given, "an IPv4 address", |v| v.parse().ok())?),
                _ => {
                    return Err(OptionError::new(
                        key,
                        "known words are replay=FILE, record=FILE, fast, gateway=IP",
                    ));
                }
            }
        }
        if spec.replay.is_none() && spec.record.is_none() {
            return Err(OptionError::new(text, "needs replay=FILE, record=FILE or both"));
        }
        Ok(spec)
    }
}

/// See the module documentation.
pub struct PcapPort {
    spec: PcapSpec,
    clock: Clock,
    replay: Option<Replay>,
    recorder: Option<Recorder>,
    account: Arc<PcapAccount>,
}

/// Counters of a port's files.
#[derive(Debug, Default)]
struct PcapAccount {
    replayed: AtomicU64,
    /// Frames longer than the IOKernel accepts, or cut when they were captured.
    skipped: AtomicU64,
    finished: AtomicBool,
    recorded: AtomicU64,
    /// Frames dropped because the recorder was behind.
    dropped: AtomicU64,
}

impl Account for PcapAccount {
    fn to_json(&self) -> Value {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        json!({ "kind": "pcap", "replayed": load(&self.replayed), "skipped": load(&self.skipped),
                "finished": self.finished.load(Ordering::Relaxed), "recorded": load(&self.recorded),
                "dropped": load(&self.dropped) })
    }
}

/// A file being replayed.
struct Replay {
    packets: Receiver<Result<Packet, String>>,
    /// The next record, read and not yet due.
    next: Option<Packet>,
    /// Time of the first poll, and timestamp of the first record: all others keep their distance
    /// from it.
    start: Option<(Cycles, u64)>,
    finished: bool,
}

/// A file being recorded.
struct Recorder {
    /// Taken on drop: the disconnected channel ends the thread.
    frames: Option<SyncSender<(u64, Vec<u8>)>>,
    thread: Option<JoinHandle<()>>,
    /// The same moment on both clocks.
    anchor: (Cycles, u64),
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.frames = None;
        if let Some(thread) = self.thread.take() {
            // Fails only if the thread panicked, which it has reported itself.
            let _ = thread.join();
        }
    }
}

/// Returns the nanoseconds since 1970.
pub fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

impl PcapPort {
    /// Returns a port on the files that `spec` names; they are opened at [`start`](Port::start).
    pub fn new(spec: PcapSpec) -> Self {
        let clock = Clock::from_hz(1_000_000_000);
        Self { spec, clock, replay: None, recorder: None, account: Arc::default() }
    }

    fn fail(&self, path: &Path, why: impl core::fmt::Display) -> PortError {
        PortError { port: self.name().to_owned(), why: format!("{}: {why}", path.display()) }
    }

    /// Returns in words which files the port would use; a file to record into is not made.
    ///
    /// # Errors
    /// Which file cannot be read or made.
    pub(super) fn examine(&self) -> Result<String, PortError> {
        let mut found = Vec::new();
        if let Some(path) = &self.spec.replay {
            let file = File::open(path).map_err(|e| self.fail(path, e))?;
            Reader::new(BufReader::new(file)).map_err(|e| self.fail(path, e))?;
            found.push(format!("replays {}", path.display()));
        }
        if let Some(path) = &self.spec.record {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let there = std::fs::symlink_metadata(path).ok();
            there.as_ref().map_or(Ok(()), check_private).map_err(|e| self.fail(path, e))?;
            let place = if there.is_some() { path } else { folder.unwrap_or(Path::new(".")) };
            access(place, Access::WRITE_OK).map_err(|e| self.fail(place, e))?;
            found.push(format!("records into {}", path.display()));
        }
        Ok(format!("capture files: {}", found.join(", ")))
    }

    fn open_replay(&self, path: &Path) -> Result<Replay, PortError> {
        let file = File::open(path).map_err(|e| self.fail(path, e))?;
        let mut reader = Reader::new(BufReader::new(file)).map_err(|e| self.fail(path, e))?;
        let (sender, packets) = sync_channel(QUEUE);
        let read = move || {
            loop {
                let item = match reader.next_packet() {
                    Ok(Some(packet)) => Ok(packet),
                    Ok(None) => return,
                    Err(error) => Err(error.to_string()),
                };
                let last = item.is_err();
                // Fails if the port is gone.
                if sender.send(item).is_err() || last {
                    return;
                }
            }
        };
        // The thread ends with the file, or when the port is dropped.
        std::thread::Builder::new()
            .name("tailwater-replay".to_owned())
            .spawn(read)
            .map_err(|e| self.fail(path, e))?;
        Ok(Replay { packets, next: None, start: None, finished: false })
    }

    fn open_recorder(&self, path: &Path) -> Result<Recorder, PortError> {
        let file = create_private(path).map_err(|e| self.fail(path, e))?;
        let mut writer =
            Writer::new(BufWriter::new(file), MAX_FRAME as u32).map_err(|e| self.fail(path, e))?;
        let (frames, received) = sync_channel::<(u64, Vec<u8>)>(QUEUE);
        let account = Arc::clone(&self.account);
        let shown = path.display().to_string();
        let write = move || {
            let mut broken = false;
            while let Ok((unix_ns, frame)) = received.recv() {
                if broken {
                    account.dropped.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                match writer.write(unix_ns, frame.len() as u32, &frame) {
                    Ok(_) => {
                        account.recorded.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => {
                        tracing::error!(file = shown, %error, "recording failed and ends");
                        broken = true;
                    }
                }
            }
            if let Err(error) = writer.flush() {
                tracing::error!(file = shown, %error, "the end of the record is lost");
            }
        };
        let thread = std::thread::Builder::new().name("tailwater-record".to_owned()).spawn(write);
        let thread = Some(thread.map_err(|e| self.fail(path, e))?);
        Ok(Recorder { frames: Some(frames), thread, anchor: (clock::now(), unix_ns()) })
    }
}

impl Replay {
    /// Returns the next record if it is due at `now`.
    fn due(&mut self, now: Cycles, clock: &Clock, fast: bool) -> Result<Option<Packet>, String> {
        if self.next.is_none() {
            match self.packets.try_recv() {
                Ok(item) => self.next = Some(item?),
                Err(TryRecvError::Empty) => return Ok(None),
                Err(TryRecvError::Disconnected) => {
                    self.finished = true;
                    return Ok(None);
                }
            }
        }
        Ok(self.next.take_if(|packet| {
            let (began, first_ns) = *self.start.get_or_insert((now, packet.unix_ns));
            fast || began.saturating_add(clock.from_ns(packet.unix_ns.saturating_sub(first_ns))) <= now
        }))
    }
}

impl Port for PcapPort {
    fn name(&self) -> &str {
        "pcap"
    }

    fn attachment(&self) -> Attachment {
        Attachment::Uplink { gateway: self.spec.gateway }
    }

    fn start(&mut self, context: &Context) -> Result<(), PortError> {
        self.clock = context.clock;
        self.replay = self.spec.replay.as_deref().map(|path| self.open_replay(path)).transpose()?;
        self.recorder = self.spec.record.as_deref().map(|path| self.open_recorder(path)).transpose()?;
        Ok(())
    }

    fn poll(&mut self, now: Cycles, budget: usize, switch: &mut dyn Inject) -> Result<usize, PortError> {
        let Some(replay) = self.replay.as_mut().filter(|replay| !replay.finished) else { return Ok(0) };
        let mut frames = 0;
        while frames < budget && (frames == 0 || switch.may_go_on(false)) {
            match replay.due(now, &self.clock, self.spec.fast) {
                Ok(Some(packet)) => {
                    frames += 1;
                    if packet.frame.len() < packet.original_len as usize {
                        self.account.skipped.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    switch.inject(&packet.frame);
                    self.account.replayed.fetch_add(1, Ordering::Relaxed);
                }
                Ok(None) => break,
                Err(why) => {
                    let path = self.spec.replay.clone().unwrap_or_default();
                    return Err(self.fail(&path, why));
                }
            }
        }
        self.account.finished.store(replay.finished, Ordering::Relaxed);
        Ok(frames)
    }

    fn transmit(&mut self, now: Cycles, frame: &[u8]) -> bool {
        let Some(Recorder { frames: Some(frames), anchor, .. }) = &self.recorder else { return false };
        let stamp = anchor.1 + self.clock.to_ns(now.saturating_sub(anchor.0));
        let sent = frames.try_send((stamp, frame.to_vec())).is_ok();
        if !sent {
            self.account.dropped.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }

    fn next_event(&self) -> Option<Cycles> {
        let replay = self.replay.as_ref().filter(|replay| !replay.finished)?;
        // Nothing has been read yet: due at once.
        let due = replay.next.as_ref().zip(replay.start).map_or(0, |(packet, (began, first_ns))| {
            began.saturating_add(self.clock.from_ns(packet.unix_ns.saturating_sub(first_ns)))
        });
        Some(if self.spec.fast { 0 } else { due })
    }

    fn account(&self) -> Option<Arc<dyn Account>> {
        Some(Arc::clone(&self.account) as Arc<dyn Account>)
    }
}

/// Creates a file of frames, or empties one of this user, or opens a device such as `/dev/null`.
/// Only its owner may read what programs send to each other, and no link is followed: in a folder
/// of many users it could lead anywhere.
///
/// # Errors
/// The kernel's; and for a link, a pipe, a file of another user, or one with several names.
pub fn create_private(path: &Path) -> std::io::Result<File> {
    use rustix::fs::OFlags;
    // A pipe without a reader would hold the caller.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
    let file = options.open(path).map_err(|error| {
        let link = std::fs::symlink_metadata(path).ok().filter(Metadata::is_symlink);
        link.and_then(|link| check_private(&link).err()).unwrap_or(error)
    })?;
    let found = file.metadata()?;
    check_private(&found)?;
    if found.is_file() {
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.set_len(0)?;
    }
    Ok(file)
}

/// Checks that what is at a path may take frames: a file of this user with one name, or a device of
/// this user or of root.
fn check_private(found: &Metadata) -> std::io::Result<()> {
    use std::io::Error;
    if found.is_symlink() {
        return Err(Error::other(
            "it is a symbolic link, and frames are written to none: name the file itself",
        ));
    }
    let own = rustix::process::geteuid().as_raw();
    let is_device = found.file_type().is_char_device() && [0, own].contains(&found.uid());
    if is_device || (found.is_file() && found.uid() == own && found.nlink() == 1) {
        return Ok(());
    }
    Err(Error::other(
        "it is no file of this user with one name, so others could read or lose something: remove it",
    ))
}

#[cfg(test)]
mod tests;
