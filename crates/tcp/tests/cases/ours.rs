//! The crate's state machines as a stack with one flow, in virtual time.

use crate::packet::Packet;
use crate::run::{Host, Read};
use core::time::Duration;
use std::collections::VecDeque;
use tailwater_tcp::listen::{Arrival, ListenConfig};
use tailwater_tcp::{
    Answer, Config, Connection, EcnCodepoint, Error, Events, FastOpenOutcome, FastOpenPeer, Flow, IcmpError,
    InitialNumbers, Instant, Keepalive, Listener, Opening, RecvError, Secret, Segment, SendError, Seq, State,
    TimeWait, TimeWaitResponse, Transmit, answer_closed,
};

const PORTS: (u16, u16) = (8080, 40_000);
/// Time between a step of the script and its effect.
const STEP: Duration = Duration::from_micros(100);
/// The clock begins here: a state machine's clock has run before.
const START: Instant = Instant(1_000_000_000_000);
const PATH_MSS: u16 = 1460;

pub struct Ours {
    now: Instant,
    out: VecDeque<Packet>,
    listener: Option<Listener>,
    connection: Option<Connection>,
    time_wait: Option<TimeWait>,
    /// True until the program takes the connection.
    waits: bool,
    config: Config,
    room: bool,
    /// The failure that no call has reported yet.
    told: bool,
    /// The cookie of the peer.
    peer: Option<FastOpenPeer>,
}

impl Ours {
    pub fn new() -> Self {
        Self {
            now: START,
            out: VecDeque::new(),
            listener: None,
            connection: None,
            time_wait: None,
            waits: false,
            config: Config::default(),
            room: true,
            told: false,
            peer: None,
        }
    }

    fn configure(&mut self, options: &[&str]) -> Result<(), String> {
        for option in options {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let number = || value.parse::<u32>().map_err(|_| format!("{option:?}"));
            match name {
                "rcvbuf" => self.config.receive_buffer = number()?,
                "nodelay" => self.config.nodelay = true,
                "maxseg" => self.config.max_segment = Some(number()? as u16),
                "ecn" => self.config.ecn = true,
                "reno" => self.config.sender.algorithm = tailwater_tcp::sender::Algorithm::NewReno,
                "full" => self.room = false,
                "fastopen" => self.config.fast_open = true,
                "accepts-ecn" | "cubic" => {}
                _ => return Err(format!("no option {option:?}")),
            }
        }
        if options.contains(&"accepts-ecn") {
            self.config.ecn = true;
        }
        Ok(())
    }

    fn flow(&self) -> Flow {
        let (local_port, remote_port) = PORTS;
        Flow { local: [10, 0, 0, 1].into(), remote: [10, 0, 0, 2].into(), local_port, remote_port }
    }

    fn connection(&mut self) -> Result<&mut Connection, String> {
        self.connection.as_mut().ok_or_else(|| "there is no connection".into())
    }

    /// Sends everything that is ready to leave.
    fn drain(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        let out = &mut self.out;
        while connection.poll_transmit(self.now, |outgoing| {
            let mut bytes = vec![0; outgoing.len()];
            outgoing.emit(&mut bytes);
            out.push_back(Packet::read(&bytes, outgoing.ecn.bits()).expect("a segment"));
            Ok(())
        }) == Transmit::Sent
        {}
        connection.check();
        if connection.state() == State::TimeWait && self.time_wait.is_none() {
            self.time_wait = connection.time_wait();
        }
    }

    fn handed_over(&mut self, result: Result<usize, SendError>) -> Result<usize, &'static str> {
        self.drain();
        result.map_err(|error| match error {
            SendError::WouldBlock => "block",
            SendError::Closed => "broken-pipe",
            // The failure is reported once.
            SendError::Failed(error) if !core::mem::replace(&mut self.told, true) => name(error),
            SendError::Failed(_) => "broken-pipe",
        })
    }

    fn reply(&mut self, header: &tailwater_tcp::Header) {
        let mut bytes = vec![0; header.len()];
        header.emit(&mut bytes);
        self.out.push_back(Packet::read(&bytes, 0).expect("a segment"));
    }

    fn timers(&self) -> Option<Instant> {
        let connection = self.connection.as_ref().filter(|_| self.time_wait.is_none());
        let connection = connection.and_then(Connection::next_timeout);
        let listener = self.listener.as_ref().and_then(Listener::next_timeout);
        let time_wait = self.time_wait.as_ref().map(TimeWait::expires_at);
        connection.into_iter().chain(listener).chain(time_wait).min()
    }

    fn run_timers(&mut self) {
        if self.time_wait.as_ref().is_some_and(|waits| waits.expires_at() <= self.now) {
            self.time_wait = None;
            self.connection = None;
        }
        if let Some(connection) = &mut self.connection {
            let _ = connection.handle_timeout(self.now);
        }
        if let Some(listener) = &mut self.listener {
            let mut headers = Vec::new();
            listener.poll_transmit(self.now, |_, header| {
                headers.push(*header);
                Ok(())
            });
            headers.iter().for_each(|header| self.reply(header));
        }
        self.drain();
    }

    fn handle(&mut self, segment: &Segment<'_>, ecn: EcnCodepoint) {
        let mut iss = None;
        if let Some(waits) = &mut self.time_wait {
            match waits.handle_segment(segment, self.now) {
                TimeWaitResponse::Ignore => return,
                TimeWaitResponse::Reply(header) => return self.reply(&header),
                TimeWaitResponse::Reopen { iss: next } => {
                    iss = Some(next);
                    (self.time_wait, self.connection) = (None, None);
                }
            }
        } else if let Some(connection) = self.connection.as_mut().filter(|it| !it.is_closed()) {
            let events = connection.handle_segment(self.now, segment, ecn);
            if events.contains(Events::FAST_OPEN)
                && let Some(FastOpenOutcome::Client { cookie: Some(cookie), mss, .. }) =
                    connection.take_fast_open()
            {
                self.peer = Some(FastOpenPeer { cookie, mss });
            }
            return self.drain();
        }
        let (flow, room) = (self.flow(), self.room);
        if let Some(listener) = &mut self.listener {
            let arrival = Arrival { flow, segment: *segment, ecn, path_mss: PATH_MSS, room, iss };
            match listener.handle_segment(self.now, &arrival) {
                Answer::Ignore => {}
                Answer::Reply(header) => self.reply(&header),
                Answer::Accept(connection, _) => {
                    (self.connection, self.waits) = (Some(*connection), true);
                    self.drain();
                }
            }
        } else if let Some(reset) = answer_closed(segment) {
            self.reply(&reset);
        }
    }
}

fn name(error: Error) -> &'static str {
    match error {
        Error::Refused => "refused",
        Error::Reset => "reset",
        Error::Aborted => "aborted",
        Error::TimedOut => "timed-out",
        Error::HostUnreachable => "host-unreachable",
        Error::NetworkUnreachable => "network-unreachable",
    }
}

impl Host for Ours {
    fn now(&self) -> Duration {
        self.now - START
    }

    fn ports(&self) -> (u16, u16) {
        PORTS
    }

    fn listen(&mut self, options: &[&str]) -> Result<(), String> {
        self.configure(options)?;
        let fast_open = if self.config.fast_open { 5 } else { 0 };
        let config = ListenConfig { connection: self.config.clone(), fast_open, ..ListenConfig::default() };
        self.listener = Some(Listener::new(config, Secret([7; 16])));
        Ok(())
    }

    fn connect(&mut self, options: &[&str]) -> Result<(), String> {
        self.configure(options)?;
        let numbers = InitialNumbers { seq: Seq(u32::MAX - 1_500), timestamp_offset: 77 };
        let opening = Opening {
            local_port: PORTS.0,
            remote_port: PORTS.1,
            numbers,
            path_mss: PATH_MSS,
            default_mss: 536,
        };
        let connection = self.connection.insert(Connection::connect(&self.config, &opening, self.now));
        if self.config.fast_open {
            connection.offer_fast_open(self.peer);
        }
        // With a cookie the SYN waits for data.
        if !self.config.fast_open || self.peer.is_none() {
            self.drain();
        }
        self.told = false;
        Ok(())
    }

    fn accept(&mut self) -> bool {
        core::mem::take(&mut self.waits)
    }

    fn write(&mut self, data: &[u8]) -> Result<usize, &'static str> {
        let Some(connection) = &mut self.connection else { return Err("no connection") };
        let result = connection.send(data);
        self.handed_over(result)
    }

    fn write_more(&mut self, data: &[u8]) -> Result<usize, &'static str> {
        let Some(connection) = &mut self.connection else { return Err("no connection") };
        let result = connection.send_more(data);
        self.handed_over(result)
    }

    fn writable(&mut self) -> bool {
        self.connection.as_mut().is_some_and(Connection::poll_writable)
    }

    fn info(&mut self, field: &str) -> Option<u64> {
        let info = self.connection.as_ref()?.info(20, self.now);
        Some(match field {
            "unacked" => info.unacked.into(),
            "sacked" => info.sacked.into(),
            "lost" => info.lost.into(),
            "retrans" => info.retrans.into(),
            "total_retrans" => info.total_retrans.into(),
            "bytes_retrans" => info.bytes_retrans,
            "snd_mss" => info.snd_mss.into(),
            "advmss" => info.advmss.into(),
            "pmtu" => info.pmtu.into(),
            "snd_cwnd" => info.snd_cwnd.into(),
            "snd_wnd" => info.snd_wnd.into(),
            "notsent_bytes" => info.notsent_bytes.into(),
            "bytes_sent" => info.bytes_sent,
            "bytes_acked" => info.bytes_acked,
            "bytes_received" => info.bytes_received,
            "data_segs_out" => info.data_segs_out.into(),
            "data_segs_in" => info.data_segs_in.into(),
            "delivered" => info.delivered.into(),
            "rcv_ooopack" => info.rcv_ooopack.into(),
            _ => return None,
        })
    }

    fn read(&mut self) -> Read {
        let Some(connection) = &mut self.connection else { return Read::Error("no connection") };
        let mut buffer = vec![0; 1 << 20];
        let result = connection.recv(&mut buffer);
        self.drain();
        match result {
            Ok(0) => Read::End,
            Ok(len) => Read::Data(buffer[..len].to_vec()),
            Err(RecvError::WouldBlock) => Read::Block,
            Err(RecvError::Failed(error)) if !core::mem::replace(&mut self.told, true) => {
                Read::Error(name(error))
            }
            Err(RecvError::Failed(_)) => Read::End,
        }
    }

    fn call(&mut self, what: &str) -> Result<(), String> {
        let now = self.now;
        let (name, value) = what.split_once('=').unwrap_or((what, ""));
        if name == "close-listener" {
            self.listener = None;
            return Ok(());
        }
        let connection = self.connection()?;
        match name {
            "shutdown-read" => connection.shutdown_read(),
            "shutdown-write" => drop(connection.close()),
            "close" => drop(connection.release(now)),
            "abort" => drop(connection.abort()),
            "nodelay" => connection.set_nodelay(true),
            "cork" => connection.set_cork(true),
            "uncork" => connection.set_cork(false),
            "lowat" => {
                let bytes = value.parse().map_err(|_| format!("{what:?}"))?;
                let _ = connection.set_notsent_lowat(Some(bytes));
            }
            "keepalive" => {
                let second = Duration::from_secs(1);
                connection.set_keepalive(Some(Keepalive::default().idle(second).interval(second).probes(2)));
            }
            "user-timeout" => {
                let limit = value.parse().map_err(|_| format!("{what:?}"))?;
                connection.set_user_timeout(Some(Duration::from_millis(limit)));
            }
            _ => return Err(format!("no call {what:?}")),
        }
        self.drain();
        Ok(())
    }

    fn state(&mut self) -> String {
        let state = self.connection.as_ref().map_or(State::Closed, Connection::state);
        format!("{state:?}")
    }

    fn deliver(&mut self, packet: &Packet) {
        self.now = self.now + STEP;
        self.run_timers();
        let bytes = packet.emit();
        if let Ok(segment) = Segment::parse(&bytes) {
            self.handle(&segment, EcnCodepoint::from_bits(packet.ecn));
        }
    }

    fn icmp(&mut self, what: &str, seq: u32) -> Result<(), String> {
        let (now, seq) = (self.now, Seq(seq));
        let connection = self.connection()?;
        let error = match what.split_once('=').unwrap_or((what, "")) {
            ("network", _) => IcmpError::NetworkUnreachable,
            ("host", _) => IcmpError::HostUnreachable,
            ("protocol", _) => IcmpError::ProtocolUnreachable,
            ("port", _) => IcmpError::PortUnreachable,
            ("prohibited", _) => IcmpError::Prohibited,
            ("hops", _) => IcmpError::Other,
            ("mtu", mtu) => {
                let mtu: u16 = mtu.parse().map_err(|_| format!("{what:?}"))?;
                let _ = connection.set_path_mtu(mtu.max(576) - 40, Some(seq), now);
                self.drain();
                return Ok(());
            }
            _ => return Err(format!("no error {what:?}")),
        };
        let _ = connection.handle_icmp(error, seq);
        self.drain();
        Ok(())
    }

    fn next(&mut self, until: Duration) -> Option<Packet> {
        let until = START + until;
        loop {
            if let Some(packet) = self.out.pop_front() {
                return Some(packet);
            }
            match self.timers() {
                Some(at) if at <= until => {
                    self.now = self.now.max(at);
                    self.run_timers();
                }
                _ => {
                    self.now = self.now.max(until);
                    return None;
                }
            }
        }
    }
}
