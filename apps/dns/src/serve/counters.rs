//! Counters of a server's answers, by type of question and by response code.
//!
//! Owns the counters: written by the answering threads with relaxed additions, read at any time.
//! Each thread that answers datagrams has a [set](Set) of its own, so that no two cores write the
//! same lines for each answer. All connections share one set, in which dispatchers count, too. A
//! type or code without a counter of its own is counted as *other*.

use core::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};

use domain::base::iana::{OptRcode, Rtype};
use tailwater::sync::Mutex;

use crate::answer::{Answered, Transport};

/// Number of types with a counter: all that are assigned below 300.
const TYPES: usize = 264;

/// Number of codes with a counter: the assigned ones (RFC 6895, section 2.3).
const CODES: usize = 24;

/// Something other than an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A message without an answer.
    Ignored,
    /// An answer that could not be sent.
    Unsent,
    /// A connection closed at once because there were too many.
    Refused,
}

/// The counters of a server.
#[derive(Debug, Default)]
pub struct Counters {
    /// Of all connections and dispatchers.
    shared: Set,
    /// Of the threads that answer datagrams, those that have ended included.
    own: Mutex<Vec<Arc<Set>>>,
}

/// One of each counter, on lines of its own.
#[derive(Debug)]
#[repr(align(64))]
pub struct Set {
    udp: AtomicU64,
    tcp: AtomicU64,
    events: [AtomicU64; 3],
    /// By number; the last for all others, and for questions that were not understood.
    types: [AtomicU64; TYPES + 1],
    codes: [AtomicU64; CODES + 1],
}

impl Default for Set {
    fn default() -> Self {
        Self {
            udp: AtomicU64::new(0),
            tcp: AtomicU64::new(0),
            events: [const { AtomicU64::new(0) }; 3],
            types: [const { AtomicU64::new(0) }; TYPES + 1],
            codes: [const { AtomicU64::new(0) }; CODES + 1],
        }
    }
}

impl Set {
    /// Counts an event.
    pub fn add(&self, event: Event) {
        self.events[event as usize].fetch_add(1, Relaxed);
    }

    /// Counts an answer that was sent.
    pub fn add_answer(&self, transport: Transport, answered: Answered) {
        let transport = match transport {
            Transport::Udp => &self.udp,
            Transport::Tcp => &self.tcp,
        };
        let rtype = answered.rtype.map_or(TYPES, |rtype| usize::from(rtype.to_int()).min(TYPES));
        let code = usize::from(answered.rcode.to_int()).min(CODES);
        for counter in [transport, &self.types[rtype], &self.codes[code]] {
            counter.fetch_add(1, Relaxed);
        }
    }

    fn add_to(&self, counts: &mut Counts) {
        let Counts { udp, tcp, ignored, unsent, refused, types, codes } = counts;
        let sums = [udp, tcp, ignored, unsent, refused].into_iter().chain(types).chain(codes);
        let counters = [&self.udp, &self.tcp].into_iter().chain(&self.events).chain(&self.types);
        for (sum, counter) in sums.zip(counters.chain(&self.codes)) {
            *sum += counter.load(Relaxed);
        }
    }
}

impl Counters {
    /// Returns the set of all connections.
    pub fn shared(&self) -> &Set {
        &self.shared
    }

    /// Returns a new set, for one thread.
    pub fn own(&self) -> Arc<Set> {
        let set = Arc::new(Set::default());
        self.own.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&set));
        set
    }

    /// Returns the present values, which belong together only while nothing is answered.
    pub fn read(&self) -> Counts {
        let mut counts = Counts::default();
        self.shared.add_to(&mut counts);
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.iter().for_each(|set| set.add_to(&mut counts));
        counts
    }
}

/// Values of the counters of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    /// Queries answered over UDP.
    pub udp: u64,
    /// Queries answered over TCP.
    pub tcp: u64,
    /// Messages without an answer.
    pub ignored: u64,
    /// Answers that could not be sent.
    pub unsent: u64,
    /// Connections closed at once because there were too many.
    pub refused: u64,
    types: Vec<u64>,
    codes: Vec<u64>,
}

impl Default for Counts {
    fn default() -> Self {
        let (types, codes) = (vec![0; TYPES + 1], vec![0; CODES + 1]);
        Self { udp: 0, tcp: 0, ignored: 0, unsent: 0, refused: 0, types, codes }
    }
}

impl Counts {
    /// Returns the number of answers to questions of a type; 0 for a type that is counted as
    /// *other*.
    pub fn of_type(&self, rtype: Rtype) -> u64 {
        self.types[..TYPES].get(usize::from(rtype.to_int())).copied().unwrap_or_default()
    }

    /// Returns the number of answers with a code; 0 for a code that is counted as *other*.
    pub fn of_code(&self, rcode: OptRcode) -> u64 {
        self.codes[..CODES].get(usize::from(rcode.to_int())).copied().unwrap_or_default()
    }
}

/// Three lines: the sums, and what is not zero by type and by code.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { udp, tcp, ignored, unsent, refused, types, codes } = self;
        writeln!(
            f,
            "{udp} answered over UDP, {tcp} over TCP, {ignored} ignored, {unsent} unsent, {refused} connections \
             too many"
        )?;
        let rtype = |number| Rtype::from_int(number).to_string();
        let rcode = |number| OptRcode::masked_from_int(number).to_string();
        line(f, "by type", types, rtype)?;
        writeln!(f)?;
        line(f, "by code", codes, rcode)
    }
}

fn line(f: &mut fmt::Formatter<'_>, head: &str, counts: &[u64], name: impl Fn(u16) -> String) -> fmt::Result {
    write!(f, "{head}:")?;
    for (number, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        match number + 1 == counts.len() {
            true => write!(f, " other {count}")?,
            false => write!(f, " {} {count}", name(number as u16))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_type_and_code() {
        let counters = Counters::default();
        let own = [counters.own(), counters.own()];
        let add = |transport, rtype: Option<Rtype>, rcode| {
            let set = if rcode == OptRcode::NXDOMAIN { &own[1] } else { &own[0] };
            let set = if transport == Transport::Tcp { counters.shared() } else { set };
            set.add_answer(transport, Answered { rtype, rcode });
        };
        add(Transport::Udp, Some(Rtype::A), OptRcode::NOERROR);
        add(Transport::Udp, Some(Rtype::A), OptRcode::NXDOMAIN);
        add(Transport::Tcp, Some(Rtype::from_int(65280)), OptRcode::NOERROR);
        add(Transport::Tcp, None, OptRcode::FORMERR);
        add(Transport::Tcp, Some(Rtype::DLV), OptRcode::BADVERS);
        counters.shared().add(Event::Refused);
        let counts = counters.read();
        assert_eq!((counts.of_type(Rtype::A), counts.of_code(OptRcode::NOERROR)), (2, 2));
        let others = (Rtype::from_int(TYPES as u16), OptRcode::masked_from_int(CODES as u16));
        assert_eq!((counts.of_type(others.0), counts.of_code(others.1)), (0, 0));
        assert_eq!(
            counts.to_string(),
            "2 answered over UDP, 3 over TCP, 0 ignored, 0 unsent, 1 connections too many\n\
             by type: A 2 other 3\nby code: NOERROR 2 FORMERR 1 NXDOMAIN 1 BADVERS 1"
        );
    }
}
