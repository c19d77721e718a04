//! A replay keeps the recorded distances, a recorded file can be replayed, and the errors of broken
//! files name the file.

use super::*;
use crate::Delivery;
use std::time::Instant;
use tailwater_testkit::PATIENCE;
use tailwater_wire::MacAddr;

/// Injected frames with their times.
#[derive(Default)]
struct Seen(Vec<(Cycles, Vec<u8>)>, Cycles);

impl Inject for Seen {
    fn inject(&mut self, frame: &[u8]) -> Delivery {
        self.0.push((self.1, frame.to_vec()));
        Delivery::Delivered
    }
    fn resolve(&self, _: Ipv4Addr) -> Option<MacAddr> {
        None
    }
}

/// A file that is removed on drop.
struct TestFile(PathBuf);

impl TestFile {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("tailwater-{}-{name}", std::process::id())))
    }

    fn words(&self, key: &str) -> String {
        format!("{key}={}", self.0.display())
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn start(words: &str) -> Result<PcapPort, PortError> {
    let mut port = PcapPort::new(words.parse().unwrap());
    let clock = Clock::from_hz(1_000_000_000);
    port.start(&Context { clock, mtu: 1500, prefix_len: 16, network6: None })?;
    Ok(port)
}

fn write(file: &TestFile, stamps: &[u64]) {
    let mut writer = Writer::new(File::create(&file.0).unwrap(), 2000).unwrap();
    for (i, &stamp) in (0u8..).zip(stamps) {
        writer.write(stamp, 60, &[i; 60]).unwrap();
    }
}

/// Polls in virtual time, every `step` cycles, until the file has ended.
fn replay(port: &mut PcapPort, step: Cycles) -> Result<Seen, PortError> {
    let (mut seen, mut now) = (Seen::default(), 0);
    let deadline = Instant::now() + PATIENCE;
    while port.next_event().is_some() {
        // Virtual time waits for the reading thread: it stands still until the next record is
        // known.
        if port.next_event().is_some_and(|due| due > now) {
            now += step;
        }
        seen.1 = now;
        port.poll(now, 4, &mut seen)?;
        assert!(Instant::now() < deadline, "the replay does not end");
    }
    Ok(seen)
}

#[test]
fn frames_come_as_far_apart_as_they_were_recorded() {
    let file = TestFile::new("timed.pcap");
    write(&file, &[5_000_000_000, 5_000_000_100, 5_000_007_000, 5_000_007_000]);
    let mut port = start(&file.words("replay")).unwrap();
    let seen = replay(&mut port, 50).unwrap();
    let times: Vec<Cycles> = seen.0.iter().map(|(at, _)| at - seen.0[0].0).collect();
    assert_eq!(times, [0, 100, 7000, 7000]);
    assert!(seen.0.iter().zip(0u8..).all(|((_, frame), i)| *frame == [i; 60]));
    let json = port.account().unwrap().to_json();
    assert_eq!((&json["replayed"], &json["finished"]), (&4.into(), &true.into()));
}

#[test]
fn a_fast_replay_waits_for_nothing() {
    let file = TestFile::new("fast.pcap");
    write(&file, &[0, 1_000_000_000, 3_600_000_000_000]);
    let mut port = start(&format!("{},fast", file.words("replay"))).unwrap();
    let seen = replay(&mut port, 1).unwrap();
    assert_eq!(seen.0.len(), 3);
}

#[test]
fn what_goes_out_is_recorded_and_can_be_replayed() {
    let file = TestFile::new("record.pcap");
    let mut port = start(&file.words("record")).unwrap();
    for i in 0..10u8 {
        assert!(port.transmit(clock::now(), &[i; 70]));
    }
    drop(port);
    let mut port = start(&format!("{},fast", file.words("replay"))).unwrap();
    let seen = replay(&mut port, 1).unwrap();
    assert_eq!(
        seen.0.iter().map(|(_, frame)| frame.clone()).collect::<Vec<_>>(),
        (0..10u8).map(|i| vec![i; 70]).collect::<Vec<_>>()
    );
}

#[test]
fn a_broken_file_ends_the_port_with_its_name_and_the_frame() {
    let file = TestFile::new("broken.pcap");
    write(&file, &[1, 2]);
    let bytes = std::fs::read(&file.0).unwrap();
    std::fs::write(&file.0, &bytes[..bytes.len() - 1]).unwrap();
    let mut port = start(&file.words("replay")).unwrap();
    let error = replay(&mut port, 1).err().expect("the second record is cut").to_string();
    assert!(error.contains("broken.pcap") && error.contains("record 1"), "{error}");
    std::fs::write(&file.0, b"not a capture file at all").unwrap();
    let error = start(&file.words("replay")).err().unwrap().to_string();
    assert!(error.contains("not a capture file"), "{error}");
    let error = start("replay=/nowhere/at-all.pcap").err().unwrap().to_string();
    assert!(error.contains("/nowhere/at-all.pcap"), "{error}");
}

#[test]
fn words_name_at_least_one_file() {
    assert!("fast".parse::<PcapSpec>().is_err());
    assert!("replay=".parse::<PcapSpec>().is_err());
    assert!("replay=x,slow".parse::<PcapSpec>().unwrap_err().to_string().contains("record=FILE"));
}

#[test]
fn a_file_of_frames_is_its_owners_alone_and_no_link_is_followed() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("frames");
    create_private(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    let why = create_private(&link).unwrap_err().to_string();
    assert!(why.contains("symbolic link"), "{why}");
    std::fs::write(&path, "kept").unwrap();
    assert!(start(&format!("record={}", link.display())).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"kept");
    std::fs::hard_link(&path, folder.path().join("name")).unwrap();
    let why = create_private(&path).unwrap_err().to_string();
    assert!(why.contains("one name"), "{why}");
    assert_eq!(std::fs::read(&path).unwrap(), b"kept");
    let spec: PcapSpec = format!("record={}", path.display()).parse().unwrap();
    let why = PcapPort::new(spec).examine().unwrap_err().to_string();
    assert!(why.contains("one name"), "a check says so before a start: {why}");
    std::fs::remove_file(folder.path().join("name")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    create_private(&path).unwrap();
    let found = std::fs::metadata(&path).unwrap();
    assert_eq!((found.permissions().mode() & 0o777, found.len()), (0o600, 0));
    create_private(std::path::Path::new("/dev/null")).unwrap();
}
