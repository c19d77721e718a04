//! A bad network around another port: loss, duplication, reordering, delay, a rate, corruption.
//!
//! Owns the two directions ([`link`]) and passes frames between them, the switch and the inner
//! port. `in` is towards the runtimes, `out` away from them. All randomness comes from one seed.
//! The inner port is polled, transmits and wakes the loop as it would without the faults.

pub mod link;

use rustix::fd::{BorrowedFd, OwnedFd};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_shm::{Clock, Cycles};
use tailwater_wire::MacAddr;

use super::grammar::{OptionError, duration_ns, rate_bps, share_ppb, value, words};
use super::{Account, Attachment, Context, Delivery, Inject, Port, PortError, PortInterface};
use link::{Link, LinkCounters, LinkSpec, MAX_HELD};

/// What is wrong with the network. Parsed from words, each for both directions, or for one with
/// `in.` or `out.` before it: `loss=1%`, `duplicate=1%`, `corrupt=1%`, `reorder=1%`,
/// `reorder-delay=1ms`, `delay=5ms`, `jitter=1ms`, `rate=100mbit`, `queue=FRAMES`; and `seed=N`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultSpec {
    /// Towards the runtimes.
    pub inward: LinkSpec,
    /// Away from them.
    pub outward: LinkSpec,
    /// Seed of all randomness.
    pub seed: u64,
}

impl FromStr for FaultSpec {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut spec = Self::default();
        for (key, given) in words(text)? {
            if key == "seed" {
                spec.seed = value(key, given, "a number", |v| v.parse().ok())?;
                continue;
            }
            let (inward, outward, name) = directions(key);
            for link in [(inward, &mut spec.inward), (outward, &mut spec.outward)] {
                if let (true, link) = link {
                    set(link, key, name, given)?;
                }
            }
        }
        spec.check(text)?;
        Ok(spec)
    }
}

impl FaultSpec {
    /// Checks that `text`, from which this was parsed, has no word without an effect.
    fn check(&self, text: &str) -> Result<(), OptionError> {
        let links = [self.inward, self.outward];
        if !links.iter().any(LinkSpec::impairs) {
            let expected = "impairs nothing: give loss, duplicate, corrupt, reorder, delay, jitter or rate";
            return Err(OptionError::new(text, expected));
        }
        for (key, _) in words(text)? {
            let (inward, outward, name) = directions(key);
            let (needed, of_link): (_, fn(&LinkSpec) -> bool) = match name {
                "queue" => ("rate", |link| link.rate_bps > 0),
                "reorder-delay" => ("reorder", |link| link.reorder_ppb > 0),
                _ => continue,
            };
            if !(inward && of_link(&self.inward) || outward && of_link(&self.outward)) {
                let expected = format!("only with {needed}= in the same direction");
                return Err(OptionError::new(key, expected));
            }
        }
        Ok(())
    }
}

/// Returns whether a word is for the frames towards the runtimes, whether for those away from them,
/// and the word without the prefix that says so.
fn directions(key: &str) -> (bool, bool, &str) {
    match key.split_once('.') {
        Some(("in", name)) => (true, false, name),
        Some(("out", name)) => (false, true, name),
        _ => (true, true, key),
    }
}

fn set(link: &mut LinkSpec, key: &str, name: &str, given: Option<&str>) -> Result<(), OptionError> {
    let percent = || value(key, given, "0% to 100%, such as 0.1%", share_ppb);
    let time = || value(key, given, "a duration up to an hour, such as 5ms or 250us", duration_ns);
    match name {
        "loss" => link.loss_ppb = percent()?,
        "duplicate" => link.duplicate_ppb = percent()?,
        "corrupt" => link.corrupt_ppb = percent()?,
        "reorder" => link.reorder_ppb = percent()?,
        "reorder-delay" => link.reorder_delay_ns = time()?,
        "delay" => link.delay_ns = time()?,
        "jitter" => link.jitter_ns = time()?,
        "rate" => link.rate_bps = value(key, given, "1kbit to 1000gbit, such as 100mbit", rate_bps)?,
        "queue" => {
            let frames = |v: &str| v.parse().ok().filter(|&n: &u32| n as usize <= MAX_HELD);
            link.queue_frames = value(key, given, &format!("0 to {MAX_HELD} frames"), frames)?;
        }
        _ => {
            let known = "known words are loss, duplicate, corrupt, reorder, reorder-delay, delay, jitter, rate, queue, each also \
                         with `in.` or `out.` before it, and seed";
            return Err(OptionError::new(key, known));
        }
    }
    Ok(())
}

/// See the module documentation.
pub struct FaultPort {
    inner: Box<dyn Port>,
    inward: Link,
    outward: Link,
    clock: Clock,
    /// Time passed to the latest call that had one.
    now: Cycles,
    account: Arc<FaultAccount>,
}

/// Counters that other threads read; the polling thread copies them here.
#[derive(Debug)]
struct FaultAccount {
    seed: u64,
    inward: SharedCounters,
    outward: SharedCounters,
    inner: std::sync::OnceLock<Arc<dyn Account>>,
}

#[derive(Debug, Default)]
struct SharedCounters([AtomicU64; 8]);

const NAMES: [&str; 8] =
    ["offered", "passed", "lost", "duplicated", "corrupted", "reordered", "queue_full", "held_full"];

impl SharedCounters {
    fn set(&self, c: LinkCounters) {
        let values =
            [c.offered, c.passed, c.lost, c.duplicated, c.corrupted, c.reordered, c.queue_full, c.held_full];
        // Relaxed: statistics.
        self.0.iter().zip(values).for_each(|(shared, value)| shared.store(value, Ordering::Relaxed));
    }

    fn to_json(&self) -> Value {
        let values = self.0.iter().map(|shared| Value::from(shared.load(Ordering::Relaxed)));
        NAMES.into_iter().map(str::to_owned).zip(values).collect()
    }
}

impl Account for FaultAccount {
    fn to_json(&self) -> Value {
        json!({ "kind": "fault", "seed": self.seed, "in": self.inward.to_json(), "out": self.outward.to_json(),
                "inner": self.inner.get().map(|inner| inner.to_json()) })
    }
}

impl FaultPort {
    /// Wraps `inner` in a network that behaves as `spec` says.
    pub fn new(inner: Box<dyn Port>, spec: FaultSpec) -> Self {
        let account = FaultAccount {
            seed: spec.seed,
            inward: SharedCounters::default(),
            outward: SharedCounters::default(),
            inner: std::sync::OnceLock::new(),
        };
        Self {
            inner,
            inward: Link::new(spec.inward, spec.seed),
            // A different seed, so that the directions are independent.
            outward: Link::new(spec.outward, !spec.seed),
            clock: Clock::from_hz(1_000_000_000),
            now: 0,
            account: Arc::new(account),
        }
    }

    /// Passes the frames that have arrived to the inner port.
    fn pass_outward(&mut self, budget: usize) -> usize {
        let now_ns = self.clock.to_ns(self.now);
        let mut passed = 0;
        while passed < budget
            && let Some(frame) = self.outward.poll(now_ns)
        {
            // A refused frame counts as lost beyond the bad network.
            self.inner.transmit(self.now, &frame);
            passed += 1;
        }
        if passed > 0 {
            self.inner.flush();
        }
        passed
    }
}

/// Takes frames from the inner port in place of the switch.
struct InnerSwitch<'a> {
    link: &'a mut Link,
    now_ns: u64,
    switch: &'a mut dyn Inject,
}

impl Inject for InnerSwitch<'_> {
    fn inject(&mut self, frame: &[u8]) -> Delivery {
        self.link.offer(self.now_ns, frame);
        // As on a wire, the sender does not learn what happens to the frame.
        Delivery::Delivered
    }

    fn may_go_on(&mut self, took_long: bool) -> bool {
        self.switch.may_go_on(took_long)
    }

    fn resolve(&self, ip: Ipv4Addr) -> Option<MacAddr> {
        self.switch.resolve(ip)
    }

    fn station(&self, ip: IpAddr) -> Option<MacAddr> {
        self.switch.station(ip)
    }

    fn renewed(&mut self, mac: Option<MacAddr>, has_local_peer: bool) {
        self.switch.renewed(mac, has_local_peer);
    }
}

impl Port for FaultPort {
    fn devices(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.devices()
    }

    fn devices_last(&self) -> bool {
        self.inner.devices_last()
    }

    fn inherit(&mut self, devices: Vec<OwnedFd>) -> Result<(), PortError> {
        self.inner.inherit(devices)
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn attachment(&self) -> Attachment {
        self.inner.attachment()
    }

    fn mac(&self) -> Option<MacAddr> {
        self.inner.mac()
    }

    fn has_local_peer(&self) -> bool {
        self.inner.has_local_peer()
    }

    fn interface(&self, context: &Context) -> Option<PortInterface> {
        self.inner.interface(context)
    }

    fn start(&mut self, context: &Context) -> Result<(), PortError> {
        self.clock = context.clock;
        self.inner.start(context)?;
        if let Some(account) = self.inner.account() {
            // Fails only when set twice; a port is started once.
            let _ = self.account.inner.set(account);
        }
        Ok(())
    }

    fn poll(&mut self, now: Cycles, budget: usize, switch: &mut dyn Inject) -> Result<usize, PortError> {
        self.now = now;
        let now_ns = self.clock.to_ns(now);
        let mut entrance = InnerSwitch { link: &mut self.inward, now_ns, switch: &mut *switch };
        let mut moved = self.inner.poll(now, budget, &mut entrance)?;
        let mut passed = 0;
        while passed < budget && (passed == 0 || switch.may_go_on(false)) {
            let Some(frame) = self.inward.poll(now_ns) else { break };
            switch.inject(&frame);
            passed += 1;
        }
        moved += passed;
        moved += self.pass_outward(budget);
        if moved > 0 {
            self.account.inward.set(self.inward.counters());
            self.account.outward.set(self.outward.counters());
        }
        Ok(moved)
    }

    fn resume(&mut self) {
        self.inner.resume();
    }

    fn transmit(&mut self, now: Cycles, frame: &[u8]) -> bool {
        self.now = now;
        self.outward.offer(self.clock.to_ns(now), frame);
        true
    }

    fn flush(&mut self) {
        // Frames leave when they are due, in no turn of their sender, which does not pay for it.
        self.pass_outward(usize::MAX);
        self.account.outward.set(self.outward.counters());
    }

    fn next_event(&self) -> Option<Cycles> {
        let arrivals = [self.inward.next_arrival(), self.outward.next_arrival()];
        let due = arrivals.into_iter().flatten().map(|ns| self.clock.from_ns(ns));
        due.chain(self.inner.next_event()).min()
    }

    fn account(&self) -> Option<Arc<dyn Account>> {
        Some(Arc::clone(&self.account) as Arc<dyn Account>)
    }

    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        self.inner.pollable()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;
    use crate::memory::tests::Recorder;

    fn port(words: &str) -> (FaultPort, memory::MemoryPeer) {
        let (inner, peer) = memory::pair("m", Attachment::Uplink { gateway: None }).unwrap();
        let mut port = FaultPort::new(Box::new(inner), words.parse().unwrap());
        let clock = Clock::from_hz(1_000_000_000);
        port.start(&Context { clock, mtu: 1500, prefix_len: 16, network6: None }).unwrap();
        (port, peer)
    }

    #[test]
    fn words_set_one_direction_or_both() {
        let spec: FaultSpec =
            "loss=1%,out.loss=2%, in.delay=5ms,jitter=10us,rate=100mbit,queue=50,seed=7".parse().unwrap();
        assert_eq!((spec.inward.loss_ppb, spec.outward.loss_ppb), (10_000_000, 20_000_000));
        assert_eq!((spec.inward.delay_ns, spec.outward.delay_ns), (5_000_000, 0));
        assert_eq!((spec.outward.rate_bps, spec.inward.queue_frames, spec.seed), (100_000_000, 50, 7));
        // A word for both directions has an effect in one.
        for one in ["in.rate=1mbit,queue=50", "out.reorder=1%,reorder-delay=2ms"] {
            assert!(one.parse::<FaultSpec>().is_ok(), "{one}");
        }
        // With the part that is wrong: the key, or what it is given.
        for (bad, word) in [
            ("loss", "loss"),
            ("loss=1", "loss=1"),
            ("los=1%", "los"),
            ("up.loss=1%", "up.loss"),
            ("in.seed=1", "in.seed"),
            ("delay=2h", "delay=2h"),
            ("rate=5", "rate=5"),
            ("queue=99999999", "queue=99999999"),
            ("seed=x", "seed=x"),
            ("", ""),
            ("seed=7", "seed=7"),
            ("loss=0%,in.delay=0s", "loss=0%,in.delay=0s"),
            ("loss=1%,queue=10", "queue"),
            ("loss=1%,queue=1000", "queue"),
            ("loss=1%,in.rate=1mbit,out.queue=10", "out.queue"),
            ("in.reorder=1%,out.reorder-delay=2ms", "out.reorder-delay"),
            ("loss=1%,loss=2%", "loss=2%"),
        ] {
            assert_eq!(bad.parse::<FaultSpec>().unwrap_err().word, word);
        }
    }

    #[test]
    fn both_directions_are_delayed_and_the_loop_is_told_when_to_wake() {
        let (mut port, peer) = port("in.delay=5us,out.delay=7us");
        let mut switch = Recorder(Vec::new());
        assert_eq!(port.next_event(), None);
        assert!(peer.send(&[1; 60]));
        port.poll(1_000, 32, &mut switch).unwrap();
        assert!(port.transmit(2_000, &[2; 60]));
        port.flush();
        assert_eq!(port.next_event(), Some(6_000));
        assert!(switch.0.is_empty() && peer.receive().is_none());
        port.poll(6_000, 32, &mut switch).unwrap();
        assert_eq!(switch.0, [[1; 60]]);
        assert_eq!(port.next_event(), Some(9_000));
        port.poll(9_000, 32, &mut switch).unwrap();
        assert_eq!(peer.receive().as_deref(), Some(&[2; 60][..]));
        assert_eq!(port.next_event(), None);
        let json = port.account().unwrap().to_json();
        assert_eq!((&json["in"]["passed"], &json["out"]["passed"]), (&1.into(), &1.into()));
    }

    #[test]
    fn without_delay_a_frame_goes_out_in_its_own_batch() {
        let (mut port, peer) = port("in.delay=5us");
        assert!(port.transmit(2_000, &[2; 60]));
        port.flush();
        assert!(peer.receive().is_some());
    }

    #[test]
    fn a_budget_bounds_each_direction_of_one_poll() {
        let (mut port, peer) = port("in.delay=1us");
        let mut switch = Recorder(Vec::new());
        (0..100).for_each(|_| assert!(peer.send(&[1; 60])));
        for i in 0..4 {
            port.poll(i, 32, &mut switch).unwrap();
        }
        port.poll(1_000_000, 32, &mut switch).unwrap();
        assert_eq!(switch.0.len(), 32);
    }
}
