//! What comes out of the joiner is what went in: in the same order, and byte for byte once long
//! packets are cut as Linux cuts them.

use super::super::Cutter;
use super::*;
use proptest::prelude::*;

/// One of a few flows, with the state that its next frame continues.
#[derive(Debug, Clone)]
struct Flow {
    v6: bool,
    port: u16,
    options: usize,
    sequence: u32,
    identification: u16,
}

impl Flow {
    fn new(v6: bool, port: u16) -> Self {
        Self { v6, port, options: 3, sequence: 0xffff_ff00, identification: 0xfffe }
    }

    /// Returns the next frame, with these flags and `len` bytes of data.
    fn frame(&mut self, flags: u8, len: usize) -> Vec<u8> {
        let (header, total) = (20 + 4 * self.options, 20 + 4 * self.options + len);
        let mut frame = vec![2; 12];
        if self.v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((total as u16).to_be_bytes());
            frame.extend([6, 64]);
            frame.extend((0..32).map(|i| i * 7));
        } else {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((20 + total as u16).to_be_bytes());
            frame.extend(self.identification.to_be_bytes());
            frame.extend([0x40, 0, 64, 6, 0, 0, 10, 77, 0, 2, 10, 77, 0, 1]);
        }
        let transport = frame.len();
        frame.extend(self.port.to_be_bytes());
        frame.extend(5000u16.to_be_bytes());
        frame.extend(self.sequence.to_be_bytes());
        frame.extend([0, 0, 0, 9, (header as u8 / 4) << 4, flags, 1, 2, 0, 0, 0, 0]);
        frame.extend((0..4 * self.options).map(|i| i as u8));
        frame.extend((0..len).map(|i| (i * 31 % 251) as u8));
        self.sequence = self.sequence.wrapping_add(len as u32);
        self.identification = self.identification.wrapping_add(1);
        sum(&mut frame, transport);
        frame
    }
}

/// Writes the checksums of a frame.
fn sum(frame: &mut [u8], transport: usize) {
    let addresses = if transport == 54 { 22..54 } else { 26..34 };
    if transport == 34 {
        frame[24..26].fill(0);
        let made = checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&made.to_be_bytes());
    }
    frame[transport + 16..transport + 18].fill(0);
    let pseudo = Sum::new().bytes(&frame[addresses]).word(6).word((frame.len() - transport) as u16);
    let made = pseudo.bytes(&frame[transport..]).finish();
    frame[transport + 16..transport + 18].copy_from_slice(&made.to_be_bytes());
}

/// Returns what is sent of these frames, each with its header, as the port sends it.
fn send(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let (mut joiner, mut sent) = (Joiner::default(), Vec::new());
    for frame in frames {
        let mut taken = joiner.take(frame);
        if taken == Taken::Other {
            sent.extend(joiner.finish().map(<[u8]>::to_vec));
            taken = joiner.take(frame);
        }
        match taken {
            Taken::Held => {}
            Taken::Last => sent.extend(joiner.finish().map(<[u8]>::to_vec)),
            Taken::Alone => sent.push([&[0; HEADER], &frame[..]].concat()),
            Taken::Other => panic!("without a packet, no frame is another's"),
        }
    }
    sent.extend(joiner.finish().map(<[u8]>::to_vec));
    sent
}

/// Cuts what was sent, as Linux does.
fn cut(mut sent: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for packet in &mut sent {
        let mut out = vec![0; 9018];
        let mut cutter = Cutter::new(packet).expect("the header fits the packet");
        while let Some(frame) = cutter.next(packet, &mut out) {
            frames.push(frame.to_vec());
        }
    }
    frames
}

/// What is wrong with a frame, or special.
#[derive(Debug, Clone, Copy)]
enum Twist {
    None,
    Flags(u8),
    /// One bit of it is another one.
    Flip(usize, u8),
    /// A 16-bit field of the headers lies, and the checksums are right for what it says.
    Lie(usize, u16),
    /// Bytes behind the packet's end.
    Padding(usize),
    /// Sequence numbers are missing before it.
    Gap(u32),
}

fn twist() -> impl Strategy<Value = Twist> {
    prop_oneof![
        12 => Just(Twist::None),
        1 => any::<u8>().prop_map(Twist::Flags),
        1 => (any::<usize>(), 0..8u8).prop_map(|(at, bit)| Twist::Flip(at, bit)),
        // Not the identification, which has no meaning in such packets.
        1 => (prop_oneof![12..17usize, 20..74usize], any::<u16>()).prop_map(|(at, value)| Twist::Lie(at, value)),
        1 => (1..9usize).prop_map(Twist::Padding),
        1 => any::<u32>().prop_map(Twist::Gap),
    ]
}

proptest! {
    #[test]
    fn cutting_what_was_joined_gives_the_same_frames_in_the_same_order(
        steps in prop::collection::vec((0..4usize, prop_oneof![3 => Just(1448usize), 1 => 0..1448usize],
            prop::bool::weighted(0.1), twist()), 0..120),
    ) {
        let mut flows = [(false, 1), (true, 1), (false, 2), (true, 2)].map(|(v6, port)| Flow::new(v6, port));
        // Runs of one flow, as programs send them.
        let mut number = 0;
        let frames: Vec<Vec<u8>> = steps.iter().map(|&(other, len, push, twist)| {
            if other == 0 { number = (number + 1) % flows.len(); }
            let flow = &mut flows[number];
            let mut flags = ACK | if push { PSH } else { 0 };
            match twist {
                Twist::Gap(gap) => flow.sequence = flow.sequence.wrapping_add(gap),
                Twist::Flags(given) => flags = given,
                _ => {}
            }
            let mut frame = flow.frame(flags, len);
            match twist {
                Twist::Flip(at, bit) => { let at = at % frame.len(); frame[at] ^= 1 << bit; }
                Twist::Lie(at, value) => {
                    if let Some(field) = frame.get_mut(at..at + 2) { field.copy_from_slice(&value.to_be_bytes()); }
                    sum(&mut frame, if flow.v6 { 54 } else { 34 });
                }
                Twist::Padding(bytes) => frame.extend(vec![0; bytes]),
                _ => {}
            }
            frame
        }).collect();
        let sent = send(&frames);
        prop_assert!(sent.iter().all(|packet| packet.len() <= HEADER + ETHERNET_HEADER + MAX_IP));
        prop_assert!(cut(sent) == frames);
    }

    #[test]
    fn any_bytes_pass_unchanged(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 0..20)) {
        let sent = send(&frames);
        prop_assert!(sent.iter().map(|packet| &packet[HEADER..]).eq(frames.iter().map(|frame| &frame[..])));
    }
}

#[test]
fn full_frames_fill_packets_of_64_kib_whose_last_frame_pushes() {
    for v6 in [false, true] {
        let mut flow = Flow::new(v6, 1);
        let mut frames: Vec<_> = (0..60).map(|_| flow.frame(ACK, 1428)).collect();
        frames.push(flow.frame(ACK | PSH, 100));
        let sent = send(&frames);
        let lens: Vec<usize> = sent.iter().map(Vec::len).collect();
        let (headers, most) =
            (frames[0].len() - 1428, (MAX_IP + ETHERNET_HEADER - frames[0].len() + 1428) / 1428);
        let rest = (60 - most) * 1428 + 100;
        assert_eq!(lens, [most * 1428, rest].map(|data| HEADER + headers + data));
        assert!(most == 45, "{most} frames in a packet");
        let flags = |packet: &Vec<u8>| packet[HEADER + headers - 32 + 13];
        assert_eq!(sent.iter().map(flags).collect::<Vec<_>>(), [ACK, ACK | PSH]);
        assert!(cut(sent) == frames);
    }
}

#[test]
fn a_packet_has_at_most_64_frames_however_small() {
    let mut flow = Flow::new(false, 1);
    let frames: Vec<_> = (0..100).map(|_| flow.frame(ACK, 1)).collect();
    let sent = send(&frames);
    let lens: Vec<usize> = sent.iter().map(|packet| packet.len() - HEADER - frames[0].len() + 1).collect();
    assert_eq!(lens, [64, 36]);
    assert!(cut(sent) == frames);
}

#[test]
fn a_request_is_sent_at_once_and_an_identification_that_stays_does_not_matter() {
    let mut flow = Flow::new(false, 1);
    let request = flow.frame(ACK | PSH, 64);
    assert_eq!(Joiner::default().take(&request), Taken::Alone);
    let frames: Vec<_> = (0..3)
        .map(|_| {
            flow.identification = 0;
            flow.frame(ACK, 1448)
        })
        .collect();
    let sent = send(&frames);
    assert_eq!(sent.len(), 1, "three frames make one packet");
    assert_eq!(sent[0].len(), HEADER + frames[0].len() + 2 * 1448);
}
