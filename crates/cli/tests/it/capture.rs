//! A capture of a running IOKernel holds what passed through it; slow, dead and refused watchers do
//! no harm.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{fails_with, stats, succeeds, tailwater};
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use pcap_file::{DataLink, TsResolution};
use tailwater_testkit::{PATIENCE, Program, eventually, is_installed, run, socket_name, text, until};

/// Returns a UDP datagram that carries `number`, complete with checksums that tcpdump finds right.
fn datagram(number: u32) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend([0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 77, 0, 8, 10, 77, 0, 9]);
    let sum: u32 = frame[14..].chunks(2).map(|w| u32::from(w[0]) * 256 + u32::from(w[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    // No UDP checksum (RFC 768).
    frame.extend([0x1f, 0x90, 0x1f, 0x91, 0, 12, 0, 0]);
    frame.extend(number.to_be_bytes());
    frame
}

/// Returns an IOKernel that replays ten minutes of a datagram every `gap`.
fn iokernel(folder: &Path, socket: &str, gap: Duration) -> Program {
    let file = folder.join("in.pcap");
    let mut writer = PcapWriter::new(File::create(&file).unwrap()).unwrap();
    let (mut number, mut stamp) = (0, Duration::ZERO);
    while stamp < Duration::from_mins(10) {
        let frame = datagram(number);
        writer.write_packet(&PcapPacket::new(stamp, frame.len() as u32, &frame)).unwrap();
        (number, stamp) = (number + 1, stamp + gap);
    }
    drop(writer);
    let replay = format!("replay={}", file.display());
    crate::common::iokernel(socket, &["--pcap", &replay])
}

/// Returns what a capture prints; `None` if the command gets no core for minutes.
#[track_caller]
fn capture(socket: &str, words: &[&str]) -> Option<String> {
    let output = succeeds(&[&["capture", "--iokernel", socket], words].concat())?;
    Some(text(&output.stderr))
}

#[test]
fn a_capture_holds_what_passed_in_order_and_ends_by_its_limits() {
    let folder = tempfile::tempdir().unwrap();
    let socket = socket_name("capture");
    let _iokernel = iokernel(folder.path(), &socket, Duration::from_millis(10));
    let file = folder.path().join("out.pcap");
    let name = file.to_str().unwrap();

    let Some(said) = capture(&socket, &["-w", name, "--count", "50", "--snap", "46"]) else { return };
    assert!(said.starts_with("50 frames, 0 missing"), "{said}");
    let mut reader = PcapReader::new(File::open(&file).unwrap()).unwrap();
    assert_eq!(reader.header().datalink, DataLink::ETHERNET);
    assert_eq!(reader.header().ts_resolution, TsResolution::NanoSecond);
    assert_eq!(reader.header().snaplen, 46);
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        frames.push((packet.timestamp, packet.data.into_owned()));
    }
    assert_eq!(frames.len(), 50);
    let number = |frame: &[u8]| u32::from_be_bytes(frame[42..46].try_into().unwrap());
    for pair in frames.windows(2) {
        assert_eq!(number(&pair[1].1), number(&pair[0].1) + 1);
        assert!(pair[1].0 >= pair[0].0);
    }
    assert_eq!(frames[0].1, datagram(number(&frames[0].1)));
    // In either direction: the machine's time may be set meanwhile.
    let age = std::time::UNIX_EPOCH.elapsed().unwrap().abs_diff(frames[0].0);
    assert!(age < PATIENCE, "a stamp is {age:?} old");

    if is_installed("tcpdump", "tcpdump") {
        let output = run(Command::new("tcpdump").args(["-nr", name, "--time-stamp-precision", "nano"]), b"");
        let shown = text(&output.stdout);
        assert_eq!(shown.lines().count(), 50, "{shown}");
        assert!(
            shown.lines().all(|line| line.contains("10.77.0.8.8080 > 10.77.0.9.8081: UDP, length 4")),
            "{shown}"
        );
    }

    // No runtime has this name: no frames, and the time limit ends the capture.
    // All frames pass the port inwards, none outwards.
    for (words, result) in [
        (&["--program", "absent", "--duration", "1s"][..], "0 frames, 0 missing"),
        (&["--through", "pcap", "--direction", "rx", "--count", "5"], "5 frames"),
        (&["--through", "pcap", "--direction", "tx", "--duration", "1s"], "0 frames"),
    ] {
        let Some(said) = capture(&socket, &[&["-w", name], words].concat()) else { return };
        assert!(said.starts_with(result), "{words:?}: {said}");
    }
    let words = ["capture", "--iokernel", &socket, "-w", name, "--through", "eth7"];
    fails_with(&words, &["the ports are: pcap"]);
}

#[test]
fn watchers_that_stop_reading_or_die_or_are_too_many_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let socket = socket_name("watcher");
    // So many that they fill the watchers' pipes.
    let _iokernel = iokernel(folder.path(), &socket, Duration::from_millis(1));
    let watcher = || {
        let mut command = tailwater(&["capture", "--iokernel", &socket, "-w", "-", "--buffer", "1"]);
        // The pipe is not read: the watcher stands still.
        Program::spawn_unread(command.stdout(Stdio::piped()).stderr(Stdio::null()))
    };
    let mut watchers: Vec<Program> = (0..4).map(|_| watcher()).collect();
    let captures = |socket: &str| Some(stats(socket)?["captures"].as_array().unwrap().len());
    until("four captures go on", || {
        // A watcher gives up if the IOKernel does not answer in time.
        for ended in watchers.iter_mut().filter_map(|one| (!one.is_running()).then_some(one)) {
            *ended = watcher();
        }
        captures(&socket) == Some(4)
    });
    let words = ["capture", "--iokernel", &socket, "-w", "/dev/null"];
    if fails_with(&words, &["4 captures are going on already"]).is_none() {
        return;
    }
    let injected = || stats(&socket)?["ports"][0]["injected"].as_u64();
    let before = eventually("the IOKernel answers", injected);
    until("frames pass all the same", || injected() > Some(before + 100));
    drop(watchers);
    until("the captures of the dead are ended", || captures(&socket) == Some(0));
    capture(&socket, &["-w", "/dev/null", "--count", "1"]);
}
