//! One case against one stack.

use crate::packet::{ACK, CE, CWR, ECE, ECT0, FIN, PSH, Packet, RST, SYN, URG};
use crate::script::Case;
use core::time::Duration;

/// The result of a program's read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    Data(Vec<u8>),
    End,
    Block,
    Error(&'static str),
}

/// A stack with one program on it.
pub trait Host {
    /// Returns the time since the case began.
    fn now(&self) -> Duration;
    /// Returns the ports of the stack and of the peer.
    fn ports(&self) -> (u16, u16);
    /// Begins to listen; a connection has `options`.
    fn listen(&mut self, options: &[&str]) -> Result<(), String>;
    /// Begins to connect.
    fn connect(&mut self, options: &[&str]) -> Result<(), String>;
    /// Takes the connection that waits, if one does.
    fn accept(&mut self) -> bool;
    /// Hands bytes over; returns how many were taken, or an error.
    fn write(&mut self, data: &[u8]) -> Result<usize, &'static str>;
    /// As [`write`](Self::write), and announces more.
    fn write_more(&mut self, data: &[u8]) -> Result<usize, &'static str>;
    /// Returns whether a poll reports the connection as writable.
    fn writable(&mut self) -> bool;
    /// Returns a field of TCP_INFO.
    fn info(&mut self, field: &str) -> Option<u64>;
    /// Reads without waiting.
    fn read(&mut self) -> Read;
    /// `shutdown-read`, `shutdown-write`, `close`, `abort`, or an option.
    fn call(&mut self, what: &str) -> Result<(), String>;
    /// Returns the name of the state.
    fn state(&mut self) -> String;
    /// Delivers a segment of the peer.
    fn deliver(&mut self, packet: &Packet);
    /// Delivers an ICMP error that quotes a segment of the stack with number `seq`.
    fn icmp(&mut self, what: &str, seq: u32) -> Result<(), String>;
    /// Returns the next segment of the stack that leaves until `until`; waits for it.
    fn next(&mut self, until: Duration) -> Option<Packet>;
}

/// The number of the peer's SYN.
const PEER_ISS: u32 = 0xffff_f000;
/// The peer's timestamp clock begins here.
const PEER_CLOCK: u32 = 1_000;
/// Time in which a stack must react where a script names none.
const PATIENCE_MS: u64 = 2_500;
/// Time in which a program's call must succeed.
const CALL: Duration = Duration::from_millis(500);

struct Runner<'a, H> {
    host: &'a mut H,
    /// Number of the stack's SYN.
    iss: Option<u32>,
    /// The number after the last that the stack has sent, relative.
    sent: u32,
    timestamps: bool,
    /// The stack's timestamps, in order of its segments.
    seen: Vec<u32>,
    /// Bytes written and read by the program.
    written: u32,
    read: u32,
    cookie: Vec<u8>,
    /// Time of the last step.
    last: Duration,
    /// Times that the last two expected segments took.
    gaps: [Duration; 2],
}

/// Runs a case.
///
/// # Errors
/// The step that failed, and why.
pub fn run(case: &Case, host: &mut impl Host) -> Result<(), String> {
    let mut runner = Runner {
        host,
        iss: None,
        sent: 0,
        timestamps: false,
        seen: Vec::new(),
        written: 0,
        read: 0,
        cookie: Vec::new(),
        last: Duration::ZERO,
        gaps: [Duration::ZERO; 2],
    };
    for step in &case.steps {
        runner.step(&step.words).map_err(|why| format!("`{}`: {why}", step.line))?;
    }
    Ok(())
}

/// Returns the bytes of a stream from a position on.
fn pattern(from: u32, len: u32) -> Vec<u8> {
    (from..from + len).map(|at| (at % 251) as u8).collect()
}

fn number<T: core::str::FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("{word:?} is no number"))
}

fn ms(word: &str) -> Result<Duration, String> {
    Ok(Duration::from_millis(number(word)?))
}

fn flags(word: &str) -> Result<u8, String> {
    let mut flags = 0;
    for flag in word.split('+') {
        flags |= match flag {
            "syn" => SYN,
            "ack" => ACK,
            "data" => ACK | PSH,
            "fin" => FIN,
            "rst" => RST,
            "urg" => URG,
            "ece" => ECE,
            "cwr" => CWR,
            "none" => 0,
            _ => return Err(format!("no flag {flag:?}")),
        };
    }
    Ok(flags)
}

/// Reads `SEQ` or `SEQ+LEN`.
fn place(word: &str) -> Result<(u32, u32), String> {
    let (seq, len) = word.split_once('+').unwrap_or((word, "0"));
    let seq: i64 = number(seq)?;
    Ok((seq as u32, number(len)?))
}

fn blocks(word: &str, base: u32) -> Result<Vec<(u32, u32)>, String> {
    let block = |block: &str| {
        let (from, to) = block.split_once('-').ok_or("a block is FROM-TO")?;
        Ok((base.wrapping_add(number(from)?), base.wrapping_add(number(to)?)))
    };
    word.split(',').map(block).collect()
}

impl<H: Host> Runner<'_, H> {
    fn step(&mut self, words: &[&str]) -> Result<(), String> {
        match words {
            ["listen", options @ ..] => self.host.listen(options)?,
            ["connect", options @ ..] => {
                self.again();
                self.host.connect(options)?;
            }
            ["again"] => self.again(),
            ["accept"] => self.accept()?,
            ["open", "passive", options @ ..] => self.open_passive(options)?,
            ["open", "active", options @ ..] => self.open_active(options)?,
            ["in", flags, place, fields @ ..] => self.deliver(flags, place, fields)?,
            ["out", flags, place, fields @ ..] => self.expect(flags, place, fields)?,
            ["burst", seq, count] => {
                let (seq, count): (u32, u32) = (number(seq)?, number(count)?);
                for segment in 0..count {
                    self.expect("data", &format!("{}+1000", seq + segment * 1000), &[])?;
                }
            }
            ["ackto", ack, fields @ ..] => return self.ack_to(ack, fields),
            ["quiet", time] => return self.quiet(ms(time)?),
            ["pass", time] => {
                let until = self.host.now() + ms(time)?;
                while let Some(packet) = self.host.next(until) {
                    self.note(&packet);
                }
            }
            ["write", len] => self.write(number(len)?, H::write)?,
            ["more", len] => self.write(number(len)?, H::write_more)?,
            ["writable", wanted] => {
                self.until(|host| match (host.writable(), *wanted) {
                    (true, "yes") | (false, "no") => Ok(()),
                    (writable, _) => Err(format!("it is {writable}")),
                })?;
            }
            ["info", fields @ ..] => {
                for field in fields {
                    let (name, wanted) = field.split_once('=').ok_or("a field is NAME=NUMBER")?;
                    let wanted = number(wanted)?;
                    self.until(|host| match host.info(name) {
                        Some(value) if value == wanted => Ok(()),
                        value => Err(format!("{name} is {value:?}")),
                    })?;
                }
            }
            ["write-fails", error] => match self.host.write(b"x") {
                Err(got) if got == *error => {}
                other => return Err(format!("{other:?}")),
            },
            ["read", what] => self.read(what)?,
            ["state", state] => {
                self.until(|host| match host.state() {
                    now if now == *state => Ok(()),
                    now => Err(format!("it is {now}")),
                })?;
            }
            ["icmp", what, seq] => {
                let seq = self.iss.ok_or("nothing was sent")?.wrapping_add(number(seq)?);
                self.host.icmp(what, seq)?;
            }
            ["call", calls @ ..] => calls.iter().try_for_each(|call| self.host.call(call))?,
            _ => return Err("no such step".into()),
        }
        self.last = self.host.now();
        Ok(())
    }

    /// Forgets the last connection.
    fn again(&mut self) {
        (self.iss, self.sent, self.timestamps) = (None, 0, false);
        (self.written, self.read) = (0, 0);
        self.seen.clear();
    }

    /// Waits until `fits`.
    fn until(&mut self, mut fits: impl FnMut(&mut H) -> Result<(), String>) -> Result<(), String> {
        let until = self.host.now() + CALL;
        loop {
            let result = fits(self.host);
            if result.is_ok() || self.host.now() >= until {
                return result;
            }
            self.wait_a_little();
        }
    }

    /// Lets a millisecond pass for calls that wait; segments that leave then are lost.
    fn wait_a_little(&mut self) {
        let until = self.host.now() + Duration::from_millis(1);
        while let Some(packet) = self.host.next(until) {
            self.note(&packet);
        }
    }

    fn accept(&mut self) -> Result<(), String> {
        let until = self.host.now() + CALL;
        while !self.host.accept() {
            if self.host.now() >= until {
                return Err("no connection waits".into());
            }
            self.wait_a_little();
        }
        Ok(())
    }

    /// Splits `rtt=MS`, what the program sets (`+OPTION`), and the SYN's fields.
    fn opening<'w>(options: &[&'w str]) -> Result<(Duration, Vec<&'w str>, Vec<&'w str>), String> {
        let mut rtt = Duration::ZERO;
        let (mut own, mut fields) = (Vec::new(), Vec::new());
        for word in options {
            if let Some(time) = word.strip_prefix("rtt=") {
                rtt = ms(time)?;
            } else if let Some(option) = word.strip_prefix('+') {
                own.push(option);
            } else {
                fields.push(*word);
            }
        }
        if !fields.iter().any(|field| field.starts_with("mss=")) {
            fields.push("mss=1000");
        }
        Ok((rtt, own, fields))
    }

    fn open_passive(&mut self, options: &[&str]) -> Result<(), String> {
        let (rtt, own, fields) = Self::opening(options)?;
        self.host.listen(&own)?;
        self.deliver(if own.contains(&"ecn") { "syn+ece+cwr" } else { "syn" }, "0", &fields)?;
        self.expect("syn+ack", "0", &["ack=1"])?;
        self.quiet(rtt)?;
        self.deliver("ack", "1", &window(&fields))?;
        self.accept()
    }

    fn open_active(&mut self, options: &[&str]) -> Result<(), String> {
        let (rtt, own, fields) = Self::opening(options)?;
        self.host.connect(&own)?;
        self.expect("syn", "0", &[])?;
        self.quiet(rtt)?;
        self.deliver(if own.contains(&"ecn") { "syn+ack+ece" } else { "syn+ack" }, "0", &fields)?;
        self.expect("ack", "1", &["ack=1"])
    }

    fn deliver(&mut self, control: &str, at: &str, fields: &[&str]) -> Result<(), String> {
        let (seq, len) = place(at)?;
        let (own, peer) = self.host.ports();
        let iss = self.iss.unwrap_or(0);
        let flags = flags(control)?;
        let mut packet = Packet {
            source: peer,
            destination: own,
            seq: PEER_ISS.wrapping_add(seq),
            ack: if flags & ACK == 0 { 0 } else { iss.wrapping_add(self.sent) },
            flags,
            window: 65_535,
            // A SYN's data follows the SYN's own number.
            payload: pattern(seq.wrapping_add(u32::from(flags & SYN != 0)), len),
            ..Packet::default()
        };
        let clock = PEER_CLOCK + self.host.now().as_millis() as u32;
        let mut value = (self.timestamps && flags & RST == 0).then_some(clock);
        let mut echo = self.seen.last().copied().unwrap_or(0);
        for field in fields {
            let (name, argument) = field.split_once('=').unwrap_or((field, ""));
            match name {
                "ack" => packet.ack = iss.wrapping_add(number::<i64>(argument)? as u32),
                "win" => packet.window = number(argument)?,
                "mss" => packet.mss = Some(number(argument)?),
                "ws" => packet.scale = Some(number(argument)?),
                "sackok" => packet.sack_permitted = true,
                "sack" => packet.sack = blocks(argument, iss)?,
                "ts" if argument.is_empty() => {
                    value = Some(clock);
                    self.timestamps |= flags & SYN != 0;
                }
                "ts" => {
                    value = Some(PEER_CLOCK.wrapping_add(number::<i64>(argument)? as u32));
                    self.timestamps |= flags & SYN != 0;
                }
                "nots" => value = None,
                // The timestamp of an earlier segment of the stack, counted from the last.
                "echo" => {
                    let back: usize = number(argument)?;
                    echo = *self.seen.iter().rev().nth(back).ok_or("no such segment")?;
                }
                "urg" => packet.urgent = number(argument)?,
                "ce" => packet.ecn = CE,
                "ect" => packet.ecn = ECT0,
                "cookie" if argument.is_empty() => packet.cookie = Some(Vec::new()),
                "cookie" if argument == "own" => packet.cookie = Some(self.cookie.clone()),
                "cookie" => packet.cookie = Some(hex(argument)?),
                "opt" => packet.raw_options = hex(argument)?,
                _ => return Err(format!("no field {field:?}")),
            }
        }
        if flags & SYN != 0 && flags & ACK == 0 {
            echo = 0;
        }
        packet.timestamps = value.map(|value| (value, echo));
        self.host.deliver(&packet);
        Ok(())
    }

    /// Records what the peer must know of a segment.
    fn note(&mut self, packet: &Packet) {
        if packet.flags & SYN != 0 && packet.flags & RST == 0 {
            self.iss = Some(packet.seq);
            self.sent = 0;
        }
        if let Some(iss) = self.iss {
            let end = packet.seq.wrapping_add(packet.numbers()).wrapping_sub(iss);
            if end.wrapping_sub(self.sent) as i32 > 0 && packet.flags & RST == 0 {
                self.sent = end;
            }
        }
        if let Some((value, _)) = packet.timestamps {
            self.seen.push(value);
        }
        if let Some(cookie) = packet.cookie.as_ref().filter(|cookie| !cookie.is_empty()) {
            self.cookie.clone_from(cookie);
        }
    }

    fn next(&mut self, within: Duration) -> Option<Packet> {
        let until = self.host.now() + within;
        let packet = self.host.next(until)?;
        self.note(&packet);
        Some(packet)
    }

    fn quiet(&mut self, time: Duration) -> Result<(), String> {
        match self.next(time) {
            None => Ok(()),
            Some(packet) => Err(format!("there is {}", self.show(&packet))),
        }
    }

    /// Skips plain ACKs up to the one of `ack`; the RFC's half second is the limit.
    fn ack_to(&mut self, ack: &str, fields: &[&str]) -> Result<(), String> {
        let within = fields.iter().find_map(|field| field.strip_prefix("within="));
        let until = self.host.now() + Duration::from_millis(within.map_or(Ok(550), number)?);
        let wanted = PEER_ISS.wrapping_add(number(ack)?);
        loop {
            let Some(packet) = self.host.next(until) else { return Err("no such ACK".into()) };
            self.note(&packet);
            if packet.flags & (SYN | FIN | RST) != 0 || !packet.payload.is_empty() {
                return Err(format!("there is {}", self.show(&packet)));
            }
            if packet.ack == wanted {
                self.last = self.host.now();
                return fields.iter().try_for_each(|field| self.check(&packet, field));
            }
        }
    }

    fn expect(&mut self, control: &str, at: &str, fields: &[&str]) -> Result<(), String> {
        let within = fields.iter().find_map(|field| field.strip_prefix("within="));
        let within = Duration::from_millis(within.map_or(Ok(PATIENCE_MS), number)?);
        let Some(packet) = self.next(within) else { return Err(format!("nothing in {within:?}")) };
        self.gaps = [self.host.now() - self.last, self.gaps[0]];
        let matches = self.matches(&packet, control, at, fields);
        matches.map_err(|why| format!("{why}: {}", self.show(&packet)))
    }

    fn matches(&self, packet: &Packet, control: &str, at: &str, fields: &[&str]) -> Result<(), String> {
        let essential = SYN | FIN | RST | ACK;
        let mut fits = false;
        for control in control.split('|') {
            let wanted = flags(control)?;
            fits |= packet.flags & essential == wanted & essential
                && packet.flags & wanted & !PSH == wanted & !PSH;
        }
        if !fits {
            return Err("other flags".into());
        }
        if at != "*" {
            let (seq, len) = place(at)?;
            if packet.seq != self.iss.unwrap_or(0).wrapping_add(seq) {
                return Err("another number".into());
            }
            if packet.payload.len() as u32 != len {
                return Err("another length".into());
            }
            if packet.payload != pattern(seq.wrapping_add(u32::from(packet.flags & SYN != 0)), len) {
                return Err("other data".into());
            }
        }
        fields.iter().try_for_each(|field| self.check(packet, field))
    }

    fn check(&self, packet: &Packet, field: &str) -> Result<(), String> {
        let (name, argument) = field.split_once(['=', '>', '<']).unwrap_or((field, ""));
        let fine = match name {
            "within" => true,
            "after" => self.gaps[0] >= ms(argument)?,
            // A timer that backs off.
            "longer" => self.gaps[0] >= self.gaps[1] * 3 / 2,
            "ack" => packet.ack == PEER_ISS.wrapping_add(number::<i64>(argument)? as u32),
            "win" if field.contains('>') => packet.window > number(argument)?,
            "win" if field.contains('<') => packet.window < number(argument)?,
            "win" => packet.window == number(argument)?,
            "mss" => packet.mss == Some(number(argument)?),
            "nomss" => packet.mss.is_none(),
            "ws" => packet.scale.is_some(),
            "nows" => packet.scale.is_none(),
            "sackok" => packet.sack_permitted,
            "nosackok" => !packet.sack_permitted,
            "sack" => packet.sack == blocks(argument, PEER_ISS)?,
            "sackfirst" => packet.sack.first() == blocks(argument, PEER_ISS)?.first(),
            "nosack" => packet.sack.is_empty(),
            "ts" => packet.timestamps.is_some(),
            "nots" => packet.timestamps.is_none(),
            "tsecr" => {
                let wanted = PEER_CLOCK.wrapping_add(number::<i64>(argument)? as u32);
                packet.timestamps.is_some_and(|(_, echo)| echo == wanted)
            }
            "noecho" => packet.timestamps.is_some_and(|(_, echo)| echo == 0),
            "psh" => packet.flags & PSH != 0,
            "ece" => packet.flags & ECE != 0,
            "noece" => packet.flags & ECE == 0,
            "cwr" => packet.flags & CWR != 0,
            "nocwr" => packet.flags & CWR == 0,
            "ect" => packet.ecn != 0,
            "noect" => packet.ecn == 0,
            "cookie" if argument.is_empty() => packet.cookie.as_ref().is_some_and(|it| !it.is_empty()),
            "cookie" => packet.cookie == Some(hex(argument)?),
            "nocookie" => packet.cookie.is_none(),
            "askcookie" => packet.cookie.as_ref().is_some_and(Vec::is_empty),
            _ => return Err(format!("no field {field:?}")),
        };
        if fine { Ok(()) } else { Err(format!("not {field}")) }
    }

    fn write(
        &mut self,
        len: u32,
        write: fn(&mut H, &[u8]) -> Result<usize, &'static str>,
    ) -> Result<(), String> {
        let data = pattern(self.written + 1, len);
        match write(self.host, &data) {
            Ok(taken) if taken == data.len() => {
                self.written += len;
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    }

    fn read(&mut self, what: &str) -> Result<(), String> {
        let until = self.host.now() + CALL;
        let mut left: u32 = what.parse().unwrap_or(0);
        loop {
            let got = self.host.read();
            match (&got, what) {
                (Read::Data(data), _) if left > 0 => {
                    if *data != pattern(self.read + 1, data.len() as u32) {
                        return Err("other data".into());
                    }
                    self.read += data.len() as u32;
                    left = left.checked_sub(data.len() as u32).ok_or("more data")?;
                    if left == 0 {
                        return Ok(());
                    }
                    continue;
                }
                (Read::End, "eof") | (Read::Block, "block") => return Ok(()),
                (Read::Error(error), what) if *error == what => return Ok(()),
                (Read::Block, _) if self.host.now() < until => self.wait_a_little(),
                _ => return Err(format!("it returns {got:?}")),
            }
        }
    }

    /// Shows a segment as a script names it.
    fn show(&self, packet: &Packet) -> String {
        let names = [(SYN, "syn"), (FIN, "fin"), (RST, "rst"), (ACK, "ack"), (ECE, "ece"), (CWR, "cwr")];
        let flags: Vec<_> =
            names.iter().filter(|(flag, _)| packet.flags & flag != 0).map(|(_, name)| *name).collect();
        let seq = packet.seq.wrapping_sub(self.iss.unwrap_or(0)) as i32;
        let mut text = format!("{} {seq}+{}", flags.join("+"), packet.payload.len());
        if packet.flags & ACK != 0 {
            text += &format!(" ack={}", packet.ack.wrapping_sub(PEER_ISS) as i32);
        }
        text += &format!(" win={}", packet.window);
        let relative = |n: u32| n.wrapping_sub(PEER_ISS) as i32;
        if !packet.sack.is_empty() {
            let blocks: Vec<_> = packet
                .sack
                .iter()
                .map(|(from, to)| format!("{}-{}", relative(*from), relative(*to)))
                .collect();
            text += &format!(" sack={}", blocks.join(","));
        }
        text
    }
}

/// Returns the fields of a SYN that later segments repeat.
fn window<'w>(fields: &[&'w str]) -> Vec<&'w str> {
    fields.iter().copied().filter(|field| field.starts_with("win=")).collect()
}

fn hex(text: &str) -> Result<Vec<u8>, String> {
    let byte =
        |pair: &[u8]| core::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
    text.as_bytes()
        .chunks(2)
        .map(byte)
        .collect::<Option<_>>()
        .ok_or_else(|| format!("{text:?} is not hexadecimal"))
}
