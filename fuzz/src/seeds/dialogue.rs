//! Conversations over TCP with the stack of [`crate::receive`]. The stack's initial sequence
//! numbers are taken from a run of it: they follow from a fixed secret.

use super::{arp, arrives, icmp, packet, packet6, solicitation};
use crate::receive::{ip, run};
use tailwater_tcp::segment::{Cookie, FastOpen, Flags, Header, Options, SackBlock, Timestamps};
use tailwater_tcp::{Segment, Seq};

/// The port of the stack's listener, and that to which it connects.
const LISTENER: u16 = 7;
const REMOTE: u16 = 9;
const FIRST: Seq = Seq(u32::MAX - 2);

/// Steps of [`crate::receive`] as sent by host 2.
struct Dialogue {
    steps: Vec<u8>,
    six: bool,
    /// Both ports, the next sequence numbers of the peer and of the stack, and the stack's
    /// timestamp, if it has one.
    ports: (u16, u16),
    seq: Seq,
    ack: Seq,
    echo: Option<u32>,
    /// The option in the stack's last SYN.
    fast_open: FastOpen,
}

impl Dialogue {
    /// Returns a client that has completed the handshake with the listener.
    fn accepted(six: bool, options: Options) -> Self {
        let mut this = Self::from_port(5000, six);
        this.opens(options);
        this.says(Flags::ACK, b"");
        this
    }

    fn from_port(port: u16, six: bool) -> Self {
        let known = if six { solicitation() } else { arp(1, 2) };
        let ports = (port, LISTENER);
        let (steps, fast_open) = (arrives(&known, true), FastOpen::None);
        Self { steps, six, ports, seq: FIRST, ack: Seq(0), echo: None, fast_open }
    }

    /// Sends a SYN and reads its answer.
    fn opens(&mut self, options: Options) {
        self.segment(Flags::SYN, options, b"");
        self.seq += 1;
        self.hears_syn();
    }

    /// Returns a server that the stack has sent a SYN.
    fn called() -> Self {
        // The stack has sent an ARP request for this address.
        let steps = arrives(&arp(2, 2), true);
        let mut this = Self { steps, ports: (REMOTE, 0), ..Self::from_port(REMOTE, false) };
        this.hears_syn();
        this
    }

    /// Returns a server to which the stack's own connection has been made.
    fn connected() -> Self {
        let mut this = Self::called();
        this.segment(Flags::SYN | Flags::ACK, Options { mss: Some(1000), ..Options::default() }, b"");
        this.seq += 1;
        this
    }

    /// Reads the last SYN that the stack sends from or to these ports.
    fn hears_syn(&mut self) {
        let (own, theirs) = self.ports;
        let mut last = None;
        run(&self.steps, &mut |frame| {
            let header = if self.six { 54 } else { 34 };
            let Some(Ok(segment)) = frame.get(header..).map(Segment::parse) else { return };
            let syn = segment.header;
            let ours = syn.destination == own && (theirs == 0 || syn.source == theirs);
            if ours && syn.flags.contains(Flags::SYN) {
                last = Some(syn);
            }
        });
        let syn = last.expect("the stack sends a SYN");
        self.ports.1 = syn.source;
        self.ack = syn.seq + 1;
        self.echo = syn.options.timestamps.map(|timestamps| timestamps.value);
        self.fast_open = syn.options.fast_open;
    }

    /// Sends a SYN with data from another port; reads its answer.
    fn opens_fast(&mut self, port: u16, fast_open: FastOpen, data: &[u8]) {
        (self.ports, self.seq, self.ack, self.echo) = ((port, LISTENER), FIRST, Seq(0), None);
        self.segment(Flags::SYN, Options { fast_open, ..all_options() }, data);
        self.seq += 1;
        self.hears_syn();
    }

    /// Opens a connection of the stack's with Fast Open; answers its SYN, of whose data it
    /// acknowledges so many bytes.
    fn is_opened_fast(&mut self, fast_open: FastOpen, bytes: u32) {
        self.steps.push(240);
        (self.ports, self.seq) = ((REMOTE, 0), FIRST);
        self.hears_syn();
        self.ack += bytes;
        self.segment(Flags::SYN | Flags::ACK, Options { fast_open, ..all_options() }, b"");
        self.seq += 1;
    }

    fn says(&mut self, flags: Flags, payload: &[u8]) {
        self.says_at(0, flags, payload);
        self.seq += payload.len() as u32 + u32::from(flags.contains(Flags::FIN));
    }

    /// As [`says`](Self::says), but `ahead` in the sequence, and without advancing it.
    fn says_at(&mut self, ahead: u32, flags: Flags, payload: &[u8]) {
        let before = self.seq;
        self.seq += ahead;
        self.segment(flags, Options::default(), payload);
        self.seq = before;
    }

    fn segment(&mut self, flags: Flags, mut options: Options, payload: &[u8]) {
        if let Some(echo) = self.echo {
            options.timestamps = Some(Timestamps { value: 1_000_000, echo });
        }
        let (source, destination) = self.ports;
        let header =
            Header { source, destination, seq: self.seq, ack: self.ack, flags, window: 5000, options };
        let mut bytes = vec![0; header.len()];
        header.emit(&mut bytes);
        bytes.extend(payload);
        let frame = if self.six { packet6(6, 64, &bytes) } else { packet(6, &bytes) };
        self.steps.extend(arrives(&frame, true));
    }

    /// A router's error about the stack's segment that begins before `ack`.
    fn returns(&mut self, code: u8, rest: [u8; 4]) {
        let (source, destination) = (self.ports.1.to_be_bytes(), self.ports.0.to_be_bytes());
        let seq = (self.ack.0.wrapping_sub(1)).to_be_bytes();
        let mut quoted = packet(6, &[&source[..], &destination, &seq].concat())[14..].to_vec();
        quoted[12..16].copy_from_slice(&ip(1).octets());
        quoted[16..20].copy_from_slice(&ip(2).octets());
        self.steps.extend(arrives(&icmp(3, code, &[&rest[..], &quoted].concat()), true));
    }
}

fn all_options() -> Options {
    Options {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 999_999, echo: 0 }),
        ..Options::default()
    }
}

/// Returns a request, an answer, and the close of both sides.
fn whole(six: bool, options: Options) -> Vec<u8> {
    let mut talk = Dialogue::accepted(six, options);
    talk.says(Flags::ACK | Flags::PSH, b"question");
    talk.steps.extend([249, 248]);
    talk.ack += 4000;
    talk.says(Flags::ACK, b"");
    talk.says(Flags::ACK | Flags::FIN, b"");
    talk.steps.push(250);
    talk.ack += 1;
    talk.says(Flags::ACK, b"");
    talk.steps.push(191);
    talk.steps
}

fn loss() -> Vec<u8> {
    let mut talk = Dialogue::accepted(false, all_options());
    talk.steps.push(248);
    let sack = [SackBlock { start: talk.ack + 1448, end: talk.ack + 4000 }].into_iter().collect();
    for _ in 0..3 {
        talk.segment(Flags::ACK, Options { sack, ..Options::default() }, b"");
    }
    talk.steps.extend([140, 191]);
    talk.ack += 4000;
    talk.says_at(5, Flags::ACK, b"second");
    talk.says(Flags::ACK, b"first");
    talk.steps
}

fn forged() -> Vec<u8> {
    let mut talk = Dialogue::accepted(false, Options::default());
    let ack = talk.ack;
    talk.says_at(1, Flags::RST, b"");
    talk.says_at(100, Flags::SYN, b"");
    for wrong in [ack + 1, ack + (1 << 31), ack + u32::MAX] {
        talk.ack = wrong;
        talk.says_at(0, Flags::ACK, b"evil");
    }
    talk.ack = ack;
    talk.says_at(0, Flags::RST, b"");
    talk.steps
}

/// Returns two handshakes that fill the queue, and a third that is answered with a cookie, which is
/// returned.
fn cookie() -> Vec<u8> {
    let mut talk = Dialogue::from_port(5000, false);
    for port in [5000, 5001, 5002] {
        (talk.ports, talk.seq, talk.ack, talk.echo) = ((port, LISTENER), FIRST, Seq(0), None);
        talk.opens(all_options());
    }
    talk.says(Flags::ACK, b"after a cookie");
    talk.steps
}

fn stray() -> Vec<u8> {
    let mut talk = Dialogue::from_port(5000, false);
    talk.ports.1 = 1;
    for flags in [Flags::SYN, Flags::ACK, Flags::FIN, Flags::RST, Flags::SYN | Flags::ACK, Flags::empty()] {
        talk.says_at(0, flags, b"x");
    }
    talk.steps
}

fn opened() -> Vec<u8> {
    let mut talk = Dialogue::connected();
    talk.says_at(4, Flags::ACK, b"late");
    talk.says(Flags::ACK, b"soon");
    talk.steps.extend([249, 248]);
    // Fragmentation needed, 600 bytes; later port unreachable, which an established connection
    // survives.
    talk.returns(4, [0, 0, 2, 88]);
    talk.ack += 1;
    talk.returns(4, [0, 0, 2, 88]);
    talk.returns(3, [0; 4]);
    talk.steps.extend([180, 251]);
    talk.steps
}

fn refused() -> Vec<u8> {
    let mut talk = Dialogue::called();
    talk.returns(3, [0; 4]);
    talk.steps
}

/// Returns a connection that asks for a cookie, one that shows it and sends data, and one with a
/// false cookie.
fn fast_accepted(six: bool) -> Vec<u8> {
    let mut talk = Dialogue::from_port(5000, six);
    talk.opens_fast(5000, FastOpen::Request, b"");
    talk.says(Flags::ACK, b"");
    let cookie = talk.fast_open;
    talk.opens_fast(5001, cookie, b"request");
    talk.seq += 7;
    talk.steps.extend([249, 248]);
    talk.says_at(1, Flags::RST, b"");
    talk.ack += 4000;
    talk.says(Flags::ACK | Flags::FIN, b"more");
    talk.steps.extend([249, 250]);
    talk.opens_fast(5002, forged_cookie(), b"request");
    talk.says(Flags::ACK, b"request");
    talk.steps
}

fn forged_cookie() -> FastOpen {
    FastOpen::Cookie(Cookie::new(&[7; 8]).expect("eight bytes are a cookie"))
}

/// Returns connections of the stack's to a server that hands out a cookie, takes data, takes only a
/// part of it, and answers no SYN with data.
fn fast_connected() -> Vec<u8> {
    let mut talk = Dialogue::called();
    talk.is_opened_fast(forged_cookie(), 0);
    talk.is_opened_fast(FastOpen::None, 7);
    talk.says(Flags::ACK, b"reply");
    talk.steps.push(249);
    talk.is_opened_fast(FastOpen::None, 3);
    talk.is_opened_fast(FastOpen::None, 8);
    talk.steps.extend([240, 160, 160, 240, 247]);
    talk.steps
}

/// Returns one conversation of each kind.
pub(super) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("tcp-accepted", whole(false, Options::default())),
        ("tcp-accepted-with-options", whole(false, all_options())),
        ("tcp6-accepted", whole(true, all_options())),
        ("tcp-connected", opened()),
        ("tcp-cookie", cookie()),
        ("tcp-fast-accepted", fast_accepted(false)),
        ("tcp6-fast-accepted", fast_accepted(true)),
        ("tcp-fast-connected", fast_connected()),
        ("tcp-forged", forged()),
        ("tcp-loss", loss()),
        ("tcp-refused", refused()),
        ("tcp-stray", stray()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the flags of all TCP segments the stack sends, in order.
    fn answers(steps: &[u8], header: usize) -> Vec<Flags> {
        let mut flags = Vec::new();
        run(steps, &mut |frame| {
            if let Some(Ok(segment)) = frame.get(header..).map(Segment::parse) {
                flags.push(segment.header.flags);
            }
        });
        flags
    }

    #[test]
    fn a_whole_conversation_ends_without_a_reset() {
        for (steps, header) in [
            (whole(false, Options::default()), 34),
            (whole(false, all_options()), 34),
            (whole(true, all_options()), 54),
        ] {
            let flags = answers(&steps, header);
            assert!(flags.contains(&(Flags::SYN | Flags::ACK)), "{flags:?}");
            let fins = flags.iter().filter(|flags| flags.contains(Flags::FIN)).count();
            assert_eq!(fins, 1, "{flags:?}");
            // The connection being opened has no peer and ends with the stack.
            let resets = flags.iter().filter(|flags| flags.contains(Flags::RST)).count();
            assert_eq!(resets, 0, "{flags:?}");
        }
    }

    #[test]
    fn a_valid_cookie_brings_data_in_and_a_false_one_does_not() {
        for (six, header) in [(false, 34), (true, 54)] {
            let mut acked = Vec::new();
            run(&fast_accepted(six), &mut |frame| {
                if let Some(Ok(segment)) = frame.get(header..).map(Segment::parse)
                    && segment.header.flags == Flags::SYN | Flags::ACK
                {
                    acked.push(segment.header.ack - FIRST);
                }
            });
            assert_eq!(acked, [1, 8, 1], "IPv6: {six}");
        }
    }

    #[test]
    fn the_stack_shows_the_cookie_that_it_was_given_with_its_data() {
        let mut syns = Vec::new();
        run(&fast_connected(), &mut |frame| {
            if let Some(Ok(segment)) = frame.get(34..).map(Segment::parse)
                && segment.header.flags == Flags::SYN
            {
                syns.push((segment.header.options.fast_open, segment.payload.len()));
            }
        });
        // The first connection is one without Fast Open.
        let cookie = forged_cookie();
        assert_eq!(syns[..4], [(FastOpen::None, 0), (FastOpen::Request, 0), (cookie, 7), (cookie, 7)]);
        assert!(syns[4..].contains(&(FastOpen::None, 0)), "{syns:?}");
    }

    #[test]
    fn what_came_back_with_a_cookie_is_acknowledged() {
        let flags = answers(&cookie(), 34);
        assert_eq!(flags.iter().filter(|flags| **flags == Flags::SYN | Flags::ACK).count(), 3, "{flags:?}");
        assert!(flags.contains(&Flags::ACK), "{flags:?}");
    }
}
